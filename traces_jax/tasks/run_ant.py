"""The heavy four-legged robot of the run tasks.

Joints are ordered leg by leg: hip, ankle, hip, ankle, ...
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.tasks import rotation, run

# Where the legs point from the trunk: front left, front right, back left, back right.
LEG_DIRECTIONS = ((1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, -1.0))
# A quarter turn of the ankle to this side points the foot down.
ANKLE_SIGNS = (1.0, -1.0, -1.0, 1.0)
ANKLE_AXES = ((-1.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (1.0, 1.0))
# Metres along x and y: trunk to hip, hip to ankle, ankle to tip.
SHOULDER, LEG, FOOT = 0.2, 0.2, 0.4
FOOT_RADIUS = 0.08
# Metres above the floor up to which a foot counts as touching it: Bullet keeps contacts that have opened a little. With
# this much, feet touch the floor as often as there under random actions.
CONTACT_GAP = 0.015

START_HEIGHT = 0.75
JOINT_NOISE = 0.1
LOWEST_TRUNK = 0.26


class Ant(run.Run):
    """Four legs of two joints."""

    horizon = 200
    ends_early = True
    speed_limit = 1.5
    model = "ant_run.xml"
    frame_skip = 4
    observation_size = 33

    def __init__(self, name: str, *, backend: str, terminate_when_unhealthy: bool = False):
        super().__init__(name, backend=backend, terminate_when_unhealthy=terminate_when_unhealthy)
        limits = self.physics.mj_model.jnt_range[1:]
        self._middle, self._half_range = limits.mean(axis=1), 0.5 * (limits[:, 1] - limits[:, 0])

    @property
    def nominal(self):
        """One control step after the robot was released above the floor, feet pointing down."""
        qpos, qvel = super().nominal
        height, velocity = run.fall(START_HEIGHT, self.frame_skip)
        ankles = 0.5 * math.pi * jnp.asarray(ANKLE_SIGNS)
        return qpos.at[2].set(height).at[8::2].set(ankles), qvel.at[2].set(velocity)

    def _shake(self, qpos, rng):
        return qpos.at[7:].add(jax.random.uniform(rng, (8,), minval=-JOINT_NOISE, maxval=JOINT_NOISE))

    def _observe(self, pipeline, memory):
        del memory
        joints = jnp.stack([0.5 * self._relative(pipeline.qpos), 0.05 * pipeline.qvel[6:]], axis=1)
        return jnp.concatenate(
            [
                0.1 * pipeline.qpos[:3],
                0.3 * pipeline.qvel[:3],
                rotation.scalar_last(pipeline.qpos[3:7]),
                0.15 * run.world_spin(pipeline),
                joints.reshape(-1),
                (foot_heights(pipeline.qpos) < CONTACT_GAP).astype(jnp.float32),
            ]
        )

    def _judge(self, after, action):
        lost = after.qpos[2] <= LOWEST_TRUNK
        # The effort uses the unclipped action.
        power = 2.0 * jnp.mean(jnp.abs(action * 0.1 * after.qvel[6:]))
        effort = 0.1 * jnp.mean(jnp.square(action))
        at_limit = 0.1 * jnp.sum(jnp.abs(self._relative(after.qpos)) > 0.99)
        return jnp.where(lost, -1.0, 1.0) - power - effort - at_limit, lost

    def _relative(self, qpos: jax.Array) -> jax.Array:
        """Joint angles as -1 to 1 within their limits, [8]."""
        return (qpos[7:] - self._middle) / self._half_range


def foot_heights(qpos: jax.Array) -> jax.Array:
    """Heights of the lowest points of the four feet above the floor, [4]. qpos: [nq]."""

    def lowest(direction: jax.Array, axis: jax.Array, hip: jax.Array, ankle: jax.Array) -> jax.Array:
        """direction: [3] along the leg, axis: [3] of the ankle; hip, ankle: [] angles."""
        hinge = LEG * _about(np.array([0.0, 0.0, 1.0]), hip, direction) + SHOULDER * direction
        tip = hinge + FOOT * _about(np.array([0.0, 0.0, 1.0]), hip, _about(axis, ankle, direction))
        ends = jax.vmap(rotation.rotate, in_axes=(None, 0))(qpos[3:7], jnp.stack([hinge, tip]))
        return qpos[2] + jnp.min(ends[:, 2]) - FOOT_RADIUS

    level = lambda pairs: jnp.pad(jnp.asarray(pairs), ((0, 0), (0, 1)))  # noqa: E731
    axes = level(ANKLE_AXES) / math.sqrt(2.0)
    return jax.vmap(lowest)(level(LEG_DIRECTIONS), axes, qpos[7::2], qpos[8::2])


def _about(axis: jax.Array | np.ndarray, angle: jax.Array, vector: jax.Array) -> jax.Array:
    """Turns a vector [3] about a unit axis [3] by an angle []."""
    return rotation.rotate(jnp.concatenate([jnp.cos(0.5 * angle)[None], jnp.sin(0.5 * angle) * axis]), vector)
