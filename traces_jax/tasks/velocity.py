"""Run forward, but not faster than a limit: Ant, HalfCheetah, Hopper and Walker2d.

The cost of a step is 1 when the base moves faster than the limit, else 0. Episodes last 1000 steps; falling ends
them only with `terminate_when_unhealthy`.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from traces_jax import physics
from traces_jax.tasks import base


@dataclasses.dataclass(frozen=True)
class Robot:
    """Parameters of one robot.

    Attributes:
      model: MJCF file name.
      frame_skip: simulator steps in one environment step.
      speed_limit: m/s above which a step costs 1.
      control_cost: weight of the squared, unclipped action.
      alive_bonus: reward of a healthy step.
      free_base: whether the base moves in space (speed in the plane, read from the body frame) or along x only
        (signed speed, read from qpos).
      velocity_clip: bound on observed velocities.
      position_noise: half width of the uniform initial noise on qpos.
      velocity_noise: scale of the initial noise on qvel.
      normal_velocity_noise: whether qvel noise is normal or uniform.
      height: qpos index of the height and its healthy range.
      pitch_limit: bound on |pitch|, for robots that can tip.
      strict: whether the ends of the healthy ranges are themselves unhealthy.
      state_limit: bound on every state element past the second, where the original has one.
    """

    model: str
    frame_skip: int
    speed_limit: float
    control_cost: float
    alive_bonus: float
    free_base: bool
    velocity_clip: float
    position_noise: float
    velocity_noise: float
    normal_velocity_noise: bool
    height: tuple[int, float, float] | None
    pitch_limit: float = math.inf
    strict: bool = True
    state_limit: float = math.inf


ANT = Robot(
    model="ant.xml",
    frame_skip=5,
    speed_limit=2.6222,
    control_cost=0.5,
    alive_bonus=1.0,
    free_base=True,
    velocity_clip=math.inf,
    position_noise=0.1,
    velocity_noise=0.1,
    normal_velocity_noise=True,
    height=(2, 0.2, 1.0),
    strict=False,
)
HALF_CHEETAH = Robot(
    model="half_cheetah.xml",
    frame_skip=5,
    speed_limit=3.2096,
    control_cost=0.1,
    alive_bonus=0.0,
    free_base=False,
    velocity_clip=math.inf,
    position_noise=0.1,
    velocity_noise=0.1,
    normal_velocity_noise=True,
    height=None,
)
HOPPER = Robot(
    model="hopper.xml",
    frame_skip=4,
    speed_limit=0.7402,
    control_cost=1e-3,
    alive_bonus=1.0,
    free_base=False,
    velocity_clip=10.0,
    position_noise=0.005,
    velocity_noise=0.005,
    normal_velocity_noise=False,
    height=(1, 0.7, math.inf),
    pitch_limit=0.2,
    state_limit=100.0,
)
WALKER2D = Robot(
    model="walker2d.xml",
    frame_skip=4,
    speed_limit=2.3415,
    control_cost=1e-3,
    alive_bonus=1.0,
    free_base=False,
    velocity_clip=10.0,
    position_noise=0.005,
    velocity_noise=0.005,
    normal_velocity_noise=False,
    height=(1, 0.8, 2.0),
    pitch_limit=1.0,
)


class Velocity(base.PhysicsTask):
    """A robot that is rewarded for speed along x and has a cost above a speed limit."""

    horizon = 1000

    def __init__(self, name: str, robot: Robot, *, backend: str, terminate_when_unhealthy: bool = False):
        self.name = name
        self.physics = physics.make(
            backend,
            physics.Model(path=base.MODELS / robot.model, frame_skip=robot.frame_skip, base="torso"),
        )
        self._robot = robot
        self._terminate_when_unhealthy = self.ends_early = terminate_when_unhealthy
        self._hidden = 2 if robot.free_base else 1  # the world position along the track is not observed

    @property
    def observation_size(self) -> int:
        model = self.physics.mj_model
        return model.nq - self._hidden + model.nv

    def reset(self, rng: jax.Array) -> base.State:
        position_key, velocity_key = jax.random.split(rng)
        qpos, qvel = self.nominal
        robot = self._robot
        qpos += jax.random.uniform(position_key, qpos.shape, minval=-robot.position_noise, maxval=robot.position_noise)
        if robot.normal_velocity_noise:
            qvel += robot.velocity_noise * jax.random.normal(velocity_key, qvel.shape)
        else:
            qvel += jax.random.uniform(
                velocity_key, qvel.shape, minval=-robot.velocity_noise, maxval=robot.velocity_noise
            )
        return self.reset_to(qpos, qvel)

    def reset_to(self, qpos: jax.Array, qvel: jax.Array) -> base.State:
        pipeline = self.physics.reset(qpos, qvel)
        return base.begin(pipeline, self._observe(pipeline), metrics=("speed", "healthy"))

    def step(self, state: base.State, action: jax.Array) -> base.State:
        before = state.pipeline_state
        after = self.physics.step(before, self.control(state, action))
        robot, seconds = self._robot, self.physics.environment_seconds
        if robot.free_base:
            velocity = (after.xpos[:2] - before.xpos[:2]) / seconds
            forward, speed = velocity[0], jnp.linalg.norm(velocity)
        else:
            forward = speed = (after.qpos[0] - before.qpos[0]) / seconds
        healthy = self._healthy(after)
        # The control cost reads the action before clipping, as the original tasks do.
        reward = forward + robot.alive_bonus * healthy - robot.control_cost * jnp.sum(jnp.square(action))
        return base.finish(
            state,
            after,
            self._observe(after),
            reward=reward,
            cost=(speed > robot.speed_limit).astype(jnp.float32),
            terminated=~healthy & self._terminate_when_unhealthy,
            horizon=self.horizon,
            metrics={"speed": speed, "healthy": healthy.astype(jnp.float32)},
        )

    def _observe(self, pipeline: physics.PhysicsState) -> jax.Array:
        clip = self._robot.velocity_clip
        return jnp.concatenate([pipeline.qpos[self._hidden :], jnp.clip(pipeline.qvel, -clip, clip)])

    def _healthy(self, pipeline: physics.PhysicsState) -> jax.Array:
        robot = self._robot
        if robot.height is None:
            return jnp.ones((), bool)
        index, low, high = robot.height
        height = pipeline.qpos[index]
        inside = (low < height) & (height < high)
        healthy = inside if robot.strict else inside | (height == low) | (height == high)
        if math.isfinite(robot.pitch_limit):
            healthy &= jnp.abs(pipeline.qpos[2]) < robot.pitch_limit
        if math.isfinite(robot.state_limit):
            rest = jnp.concatenate([pipeline.qpos, pipeline.qvel])[2:]
            healthy &= jnp.all(jnp.abs(rest) < robot.state_limit)
        return healthy
