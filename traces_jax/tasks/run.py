"""Run along a corridor within a speed limit: Ball, Car, Drone and Ant.

The originals use Bullet. Features that MuJoCo lacks are in the models and here: every body has velocity damping
(`physics.Model.drag`), and an episode starts one control step after the robot was released.

The cost of a step is 1 when the robot is outside the corridor (|y| > 2) or faster than its limit, else 0.
"""

import abc
import dataclasses

import jax
import jax.numpy as jnp

from traces_jax import physics
from traces_jax.tasks import base, rotation

GRAVITY = 9.81
# Bullet's default damping of linear and of angular velocities.
DRAG = 0.04
SIMULATOR_SECONDS = 1 / 120
LANE_HALF_WIDTH = 2.0
# Progress is measured towards this point, far down the corridor.
GOAL = (1000.0, 0.0)
REWARD_PER_METRE = 60.0
START_HALF_WIDTH = 0.01


class Run(base.PhysicsTask):
    """Base class of the four. The base body has a free joint that comes first in qpos and qvel."""

    horizon: int
    speed_limit: float
    model: str
    frame_skip: int

    def __init__(self, name: str, *, backend: str, terminate_when_unhealthy: bool = False):
        del terminate_when_unhealthy  # Not a choice here: for robots that can fall, a fall always ends the episode.
        self.name = name
        self.physics = physics.make(
            backend, physics.Model(path=base.MODELS / self.model, frame_skip=self.frame_skip, base="base", drag=DRAG)
        )

    def reset(self, rng: jax.Array) -> base.State:
        place_key, joint_key = jax.random.split(rng)
        qpos, qvel = self.nominal
        offset = jax.random.uniform(place_key, (2,), minval=-START_HALF_WIDTH, maxval=START_HALF_WIDTH)
        return self.reset_to(self._shake(qpos.at[:2].add(offset), joint_key), qvel)

    def reset_to(self, qpos: jax.Array, qvel: jax.Array) -> base.State:
        pipeline = self.physics.reset(qpos, qvel)
        memory = self._memory()
        return base.begin(pipeline, self._observe(pipeline, memory), metrics=("speed",), memory=memory)

    def step(self, state: base.State, action: jax.Array) -> base.State:
        before = state.pipeline_state
        after = self.physics.step(before, self.control(state, action))
        memory = self._remember(action)
        own_reward, terminated = self._judge(after, action)
        speed = jnp.linalg.norm(after.qvel[:2])
        off_lane = jnp.abs(after.qpos[1]) > LANE_HALF_WIDTH
        return base.finish(
            dataclasses.replace(state, info={**state.info, **memory}),
            after,
            self._observe(after, memory),
            reward=REWARD_PER_METRE * progress(before.qpos[:2], after.qpos[:2]) + own_reward,
            cost=(off_lane | (speed > self.speed_limit)).astype(jnp.float32),
            terminated=terminated,
            horizon=self.horizon,
            metrics={"speed": speed},
        )

    def _shake(self, qpos: jax.Array, rng: jax.Array) -> jax.Array:
        """Adds the initial noise of the joints. qpos: [nq]."""
        del rng
        return qpos

    def _memory(self) -> dict[str, jax.Array]:
        """The robot's own values in `State.info`, carried from step to step, at the start."""
        return {}

    def _remember(self, action: jax.Array) -> dict[str, jax.Array]:
        """The same after a step with an action [A]."""
        del action
        return {}

    @abc.abstractmethod
    def _observe(self, pipeline: physics.PhysicsState, memory: dict[str, jax.Array]) -> jax.Array:
        """The observation [O]."""

    @abc.abstractmethod
    def _judge(self, after: physics.PhysicsState, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The robot's own part of the reward, [], and whether it terminates, [] bool. action: [A], not clipped."""


def progress(before: jax.Array, after: jax.Array) -> jax.Array:
    """Meters by which the distance to the goal decreased. before, after: [2].

    In float32, a distance of a kilometer cannot resolve the millimeters of a step. The difference of the two distances,
    computed through the difference of squares, can.
    """
    goal = jnp.asarray(GOAL, jnp.float32)
    moved = after - before
    distances = jnp.linalg.norm(goal - before) + jnp.linalg.norm(goal - after)
    return jnp.sum(moved * ((goal - before) + (goal - after))) / distances


def fall(height: float, steps: int) -> tuple[float, float]:
    """Height and vertical velocity after a free fall from rest for some simulator steps."""
    velocity = 0.0
    for _ in range(steps):
        velocity -= SIMULATOR_SECONDS * (GRAVITY + DRAG * velocity * (1.0 + abs(velocity)))
        height += SIMULATOR_SECONDS * velocity
    return height, velocity


def world_spin(pipeline: physics.PhysicsState) -> jax.Array:
    """Angular velocity of the base in the world, [3]; a free joint has it in the body's frame."""
    return rotation.rotate(pipeline.qpos[3:7], pipeline.qvel[3:6])
