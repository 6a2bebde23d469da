"""Drive along a circle whose sides lie beyond walls: Point and Car, each at two levels.

The reward of a step is the speed along the circle, counter-clockwise, reduced with the distance from it. The cost is 1
when the robot is beyond a wall, else 0; the walls are not obstacles. Level 1 has a wall on either side in x, level 2 in
y as well. Episodes end only by the time limit, after 500 steps.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from traces_jax import physics
from traces_jax.tasks import base, rotation

FRAME_SKIP = 10
RADIUS = 1.5
WALL_DISTANCE = 1.125
REWARD_SCALE = 0.1
REWARD_LIMIT = 10.0
START_HALF_WIDTH = 0.8
# MuJoCo's default magnetic field of the world.
MAGNETIC_FIELD = (0.0, -0.5, 0.0)
LIDAR_BINS = 16
LIDAR_RANGE = 6.0
# The wall geoms in pairs; level n has n pairs.
_WALLS = (("wall_east", "wall_west"), ("wall_north", "wall_south"))


@dataclasses.dataclass(frozen=True)
class Agent:
    """Parameters of one robot.

    Attributes:
      model: MJCF file name.
      wheeled: whether it stands on wheels and a ball caster (its base is free, and the caster is observed) or slides in
        the plane (qpos is x, y and heading).
      start_height: height of its origin in random initial states.
    """

    model: str
    wheeled: bool
    start_height: float


POINT = Agent(model="point_circle.xml", wheeled=False, start_height=0.1)
# At the original's initial height of 0.1 the wheels just touch the floor, and rounding decides whether they push. Here
# the car starts at the height to which it would settle anyway.
CAR = Agent(model="car_circle.xml", wheeled=True, start_height=0.09989)


class Circle(base.PhysicsTask):
    """A robot that is rewarded for circling and has a cost beyond a wall."""

    horizon = 500

    def __init__(self, name: str, agent: Agent, *, level: int, backend: str, terminate_when_unhealthy: bool = False):
        del terminate_when_unhealthy  # Nothing here can fall.
        self.name = name
        self.physics = physics.make(
            backend,
            physics.Model(path=base.MODELS / agent.model, frame_skip=FRAME_SKIP, base="agent", senses=True),
        )
        self._agent = agent
        self._level = level
        self._start_sensors = _sensors_at_height(self.physics.mj_model, agent)
        # The file has the walls of level 2. They are only visual, so hiding some affects rendering only.
        for pair in _WALLS[level:]:
            for wall in pair:
                self.physics.mj_model.geom(wall).rgba[3] = 0.0

    @property
    def observation_size(self) -> int:
        return (24 if self._agent.wheeled else 12) + LIDAR_BINS

    def pose(self, x: jax.Array, y: jax.Array, heading: jax.Array) -> jax.Array:
        """The robot placed as in the original, at the model's own height. x, y, heading: []. Returns [nq]."""
        if not self._agent.wheeled:
            return jnp.array([x, y, heading], jnp.float32)
        # The model's height of 0.1 is slightly larger in float32: the wheels do not push yet, as in the recorded runs
        # of the original. Random initial states are lower (see CAR).
        qpos, _ = self.nominal
        return qpos.at[:2].set(jnp.array([x, y])).at[3:7].set(_about_vertical(heading))

    def reset(self, rng: jax.Array) -> base.State:
        place_key, heading_key = jax.random.split(rng)
        x, y = jax.random.uniform(place_key, (2,), minval=-START_HALF_WIDTH, maxval=START_HALF_WIDTH)
        qpos = self.pose(x, y, jax.random.uniform(heading_key, maxval=2.0 * math.pi))
        if self._agent.wheeled:
            qpos = qpos.at[2].set(self._agent.start_height)
        _, qvel = self.nominal
        return self._start(self.physics.reset(qpos, qvel, jnp.asarray(self._start_sensors)))

    def reset_to(self, qpos: jax.Array, qvel: jax.Array) -> base.State:
        return self._start(self.physics.reset(qpos, qvel))

    def step(self, state: base.State, action: jax.Array) -> base.State:
        after = self.physics.step(state.pipeline_state, self.control(state, action))
        # Both robots' qpos and qvel begin with x and y of the body's origin.
        place, velocity = after.qpos[:2], after.qvel[:2]
        return base.finish(
            state,
            after,
            self._observe(after),
            reward=circling(place, velocity),
            cost=is_beyond_wall(place, self._level).astype(jnp.float32),
            terminated=jnp.zeros((), bool),
            horizon=self.horizon,
            metrics={"radius": jnp.linalg.norm(place), "speed": jnp.linalg.norm(velocity)},
        )

    def _start(self, pipeline: physics.PhysicsState) -> base.State:
        return base.begin(pipeline, self._observe(pipeline), metrics=("radius", "speed"))

    def _observe(self, pipeline: physics.PhysicsState) -> jax.Array:
        """[O], in the body's axes: acceleration, velocity, spin, magnetic field; spin and axes of a caster; lidar."""
        sensors = pipeline.sensors
        assert sensors is not None
        position, axes = self._frame(pipeline.qpos)
        # Components of a world vector along the axes, which are the columns: vector @ axes.
        magnetometer = jnp.array(MAGNETIC_FIELD) @ axes
        caster = [sensors[9:12], _axes(sensors[12:16]).ravel()] if self._agent.wheeled else []
        return jnp.concatenate([sensors[:9], magnetometer, *caster, lidar((-position @ axes)[:2])])

    def _frame(self, qpos: jax.Array) -> tuple[jax.Array, jax.Array]:
        """World position [3] of the body's origin, and its axes as columns [3, 3]. qpos: [nq]."""
        if self._agent.wheeled:
            return qpos[:3], _axes(qpos[3:7] / jnp.linalg.norm(qpos[3:7]))
        height = jnp.asarray(self._agent.start_height, jnp.float32)
        return jnp.append(qpos[:2], height), _axes(_about_vertical(qpos[2]))


def circling(place: jax.Array, velocity: jax.Array) -> jax.Array:
    """Reward of moving with velocity [2] at a place [2]. Returns []."""
    radius = jnp.linalg.norm(place)
    moment = place[0] * velocity[1] - place[1] * velocity[0]
    # At the center the direction is undefined; the moment is 0 there.
    along = moment / jnp.maximum(radius, jnp.finfo(jnp.float32).tiny)
    reward = REWARD_SCALE * along / (1.0 + jnp.abs(radius - RADIUS))
    return jnp.clip(reward, -REWARD_LIMIT, REWARD_LIMIT)


def is_beyond_wall(place: jax.Array, level: int) -> jax.Array:
    """Whether a place [2] has a cost, [] bool."""
    return jnp.any(jnp.abs(place[:level]) > WALL_DISTANCE)


def lidar(offset: jax.Array) -> jax.Array:
    """Closeness of the circle's center, in its own bin and interpolated in the neighbouring bins.

    offset: [2] from the robot to the centre, in the body's axes. Returns [LIDAR_BINS], counter-clockwise from ahead.
    """
    closeness = jnp.maximum(0.0, LIDAR_RANGE - jnp.linalg.norm(offset)) / LIDAR_RANGE
    angle = jnp.arctan2(offset[1], offset[0]) % (2.0 * math.pi)
    within = angle * (LIDAR_BINS / (2.0 * math.pi))
    # Rounding may give a full turn, which is bin 0 again.
    own = jnp.floor(within)
    share = within - own
    weights = jnp.stack([1.0 - share, jnp.ones_like(share), share])
    bins = (own.astype(jnp.int32) + jnp.arange(-1, 2)) % LIDAR_BINS
    return closeness * (weights @ jax.nn.one_hot(bins, LIDAR_BINS))


def _about_vertical(angle: jax.Array) -> jax.Array:
    """Quaternion [4] of a turn about the world's z. angle: []."""
    half = 0.5 * jnp.asarray(angle, jnp.float32)
    return jnp.array([jnp.cos(half), 0.0, 0.0, jnp.sin(half)])


def _axes(quaternion: jax.Array) -> jax.Array:
    """The turned frame's axes as columns. quaternion: [4], unit. Returns [3, 3]."""
    return jax.vmap(rotation.rotate, in_axes=(None, 0), out_axes=1)(quaternion, jnp.eye(3))


def _sensors_at_height(mj_model: mujoco.MjModel, agent: Agent) -> np.ndarray:
    """The sensors [nsensordata] of all random initial states: in body axes they depend on neither place nor heading."""
    data = mujoco.MjData(mj_model)
    if agent.wheeled:
        data.qpos[2] = agent.start_height
    mujoco.mj_forward(mj_model, data)
    return data.sensordata.astype(np.float32)
