"""Circle tasks: the physics against the original engine's numbers (goldens/circle.json), the rest by hand."""

import ctypes.util
import dataclasses
import functools
import json
import math
import pathlib
import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from traces_jax import replay
from traces_jax.host.show import render
from traces_jax.tasks import circle

GOLDENS = json.loads((pathlib.Path(__file__).parent / "goldens" / "circle.json").read_text(encoding="utf-8"))
AGENTS = {"Point": circle.POINT, "Car": circle.CAR}
START = (0.3, -0.2, 0.7)
STEPS = 200

needs_graphics = pytest.mark.skipif(
    sys.platform == "linux" and not any(ctypes.util.find_library(name) for name in ("EGL", "OSMesa")),
    reason="neither libEGL nor libOSMesa is installed (apt install libegl1 libgl1)",
)


@functools.cache
def make(robot: str, level: int, backend: str = "native") -> circle.Circle:
    return circle.Circle(f"Safety{robot}Circle{level}-v0", AGENTS[robot], level=level, backend=backend)


@pytest.fixture
def point() -> circle.Circle:
    return make("Point", 1)


@pytest.fixture
def car() -> circle.Circle:
    return make("Car", 1)


@pytest.fixture(params=AGENTS)
def either(request: pytest.FixtureRequest) -> circle.Circle:
    return make(request.param, 1)


def play(task: circle.Circle, action: list[float], steps: int = STEPS) -> dict[str, np.ndarray]:
    _, qvel = task.nominal
    actions = jnp.broadcast_to(jnp.asarray(action, jnp.float32), (steps, 2))
    result = replay.replay(task, replay.Inputs(qpos=task.pose(*START), qvel=qvel, actions=actions))
    return {name: np.asarray(values) for name, values in result.items()}


def position_errors(found: dict[str, np.ndarray], golden: dict) -> dict[int, float]:
    """Largest difference of the body's position at each stored step that was played."""
    steps = [step for step in map(int, golden["states"]) if step <= len(found["position"])]
    return {
        step: float(np.abs(found["position"][step - 1] - golden["states"][str(step)]["position"]).max())
        for step in steps
    }


@pytest.mark.parametrize("robot", AGENTS)
def test_bodies_are_those_of_the_original(robot: str):
    model, golden = make(robot, 1).physics.mj_model, GOLDENS[robot]
    np.testing.assert_allclose(model.body_mass, golden["body_mass"], rtol=1e-9)
    np.testing.assert_allclose(model.body_inertia[1:], golden["body_inertia"], rtol=1e-7)
    np.testing.assert_allclose(model.body_ipos[1:], golden["body_ipos"], atol=1e-9)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("robot", "run", "position", "rest"),
    [
        ("Point", "turn", 1e-7, 1e-6),
        ("Point", "both", 1e-7, 1e-6),
        ("Car", "zero", 1e-7, 2e-6),
        ("Car", "left", 1e-6, 5e-6),
        ("Car", "right", 2e-6, 3e-5),
        ("Car", "both", 1e-5, 2e-5),
    ],
)
def test_held_actions_match_the_original(robot: str, level: int, run: str, position: float, rest: float):
    """Observations, velocities and rewards are held to `rest`; sensors of acceleration and the caster are roughest."""
    golden = GOLDENS[robot]["runs"][run]
    found = play(make(robot, level), golden["action"])
    differences = position_errors(found, golden)
    assert max(differences) == STEPS
    assert max(differences.values()) <= position, differences
    np.testing.assert_allclose(found["obs0"], golden["obs0"], rtol=0, atol=1e-6)
    seen = 0
    for step, state in golden["states"].items():
        row = int(step) - 1
        np.testing.assert_allclose(found["velocity"][row], state["velocity"], rtol=0, atol=rest, err_msg=step)
        if "obs" in state:
            np.testing.assert_allclose(found["obs"][row], state["obs"], rtol=0, atol=rest, err_msg=step)
            seen += 1
    assert seen == 3
    np.testing.assert_allclose(found["reward"][:20], golden["rewards_first20"], rtol=0, atol=2e-7)
    assert found["reward"].sum(dtype=float) == pytest.approx(golden["reward_sum"], abs=2e-6)
    speed = np.linalg.norm(found["velocity"][:, :2], axis=1)
    assert speed.max() == pytest.approx(golden["max_speed"], abs=2e-5)
    cost = golden["cost"][str(level)]
    assert found["cost"].sum() == cost["sum"]
    assert found["cost"].argmax() == (cost["first"] or 1) - 1
    assert not found["terminated"].any()


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("run", ["forward", "forward_and_turn"])
def test_chattering_runs_follow_the_original_closely(run: str, level: int):
    """An unsaturated yaw servo chatters with a phase that rounding decides, so these runs agree only nearly."""
    golden = GOLDENS["Point"]["runs"][run]
    found = play(make("Point", level), golden["action"])
    assert max(position_errors(found, golden).values()) < 0.05
    for step, state in golden["states"].items():
        expected = np.linalg.norm(state["velocity"])
        assert np.linalg.norm(found["velocity"][int(step) - 1]) == pytest.approx(expected, rel=0.02), step
    assert found["reward"].sum(dtype=float) == pytest.approx(golden["reward_sum"], rel=0.01)
    cost = golden["cost"][str(level)]
    assert found["cost"].sum() == pytest.approx(cost["sum"], abs=2)
    assert found["cost"].argmax() + 1 == pytest.approx(cost["first"], abs=1)


def test_the_yaw_servo_chatters_as_in_the_original(point: circle.Circle):
    """Full speed ahead without turning: the yaw rate is caught at one side of its swing, with the sideways push."""
    golden = GOLDENS["Point"]["runs"]["forward"]
    found = play(point, golden["action"])
    sample = np.asarray(golden["states"]["50"]["obs"])
    settled = np.abs(found["obs"][10:])
    np.testing.assert_allclose(settled[:, 8], abs(sample[8]), rtol=1e-3)
    np.testing.assert_allclose(settled[:, 1], abs(sample[1]), rtol=1e-2)
    assert np.linalg.norm(found["velocity"], axis=1).max() == pytest.approx(golden["max_speed"], abs=1e-5)
    # What drives and what damps it balance at 0.015 N / 0.01 N s/m.
    assert golden["max_speed"] == pytest.approx(1.5, abs=1e-3)


@pytest.mark.parametrize(
    ("robot", "bounds"),
    [("Point", {"turn": 1e-6, "both": 1e-6}), ("Car", {"both": 1e-5, "left": 1e-3})],
)
def test_mjx_matches_the_original(robot: str, bounds: dict[str, float]):
    """Only the chassis of the car: its wheels and caster stick and slip, where float32 soon tells."""
    task = make(robot, 1, "mjx")
    for run, bound in bounds.items():
        golden = GOLDENS[robot]["runs"][run]
        found = play(task, golden["action"], steps=30)
        differences = position_errors(found, golden)
        assert max(differences) == 30
        assert max(differences.values()) <= bound, differences
        np.testing.assert_allclose(found["obs0"], golden["obs0"], rtol=0, atol=2e-6)
        np.testing.assert_allclose(found["obs"][0], golden["states"]["1"]["obs"], rtol=0, atol=1e-4)
        np.testing.assert_allclose(found["reward"][:20], golden["rewards_first20"], rtol=0, atol=1e-4)


def test_a_pose_is_where_the_original_sets_the_car_down(car: circle.Circle):
    np.testing.assert_allclose(car.pose(*START), GOLDENS["Car"]["runs"]["zero"]["qpos0"], rtol=0, atol=1e-7)


def test_starts_are_spread_and_cost_nothing(either: circle.Circle):
    states = jax.jit(jax.vmap(either.reset))(jax.random.split(jax.random.key(3), 4000))
    place = np.asarray(states.pipeline_state.qpos[:, :2])
    assert 0.79 < np.abs(place).max() <= 0.8
    np.testing.assert_allclose(place.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(place.std(axis=0), 0.8 / math.sqrt(3), rtol=0.05)
    # The magnetometer is a compass: north in the body's frame tells the heading.
    compass = np.asarray(states.obs[:, 9:11])
    quarter = np.floor(np.arctan2(compass[:, 1], compass[:, 0]) / (math.pi / 2)).astype(int) + 2
    np.testing.assert_allclose(np.bincount(quarter, minlength=4) / 4000, 0.25, atol=0.03)
    assert not states.pipeline_state.qvel.any()
    assert not jax.vmap(functools.partial(circle.is_beyond_wall, level=2))(place).any()
    assert states.obs.shape == (4000, either.observation_size)
    assert np.isfinite(states.obs).all()


def test_a_random_start_needs_no_simulator_and_knows_its_sensors(either: circle.Circle):
    state = jax.jit(either.reset)(jax.random.key(0))
    mechanics = state.pipeline_state
    evaluated = jax.jit(either.reset_to)(mechanics.qpos, mechanics.qvel)
    np.testing.assert_allclose(state.obs, evaluated.obs, rtol=0, atol=1e-5)
    assert "ffi_call" in str(jax.make_jaxpr(either.reset_to)(mechanics.qpos, mechanics.qvel))
    assert "ffi_call" not in str(jax.make_jaxpr(either.reset)(jax.random.key(0)))


def test_a_random_start_of_the_car_stands_still(car: circle.Circle):
    """Where it is set down it carries its weight at once, and it hardly settles."""
    start = jax.jit(car.reset)(jax.random.key(0))
    assert start.obs[2] == pytest.approx(9.81, abs=0.02)
    step = jax.jit(car.step)
    state = start
    for _ in range(25):
        state = step(state, jnp.zeros((2,)))
    np.testing.assert_allclose(state.pipeline_state.qpos[:3], start.pipeline_state.qpos[:3], rtol=0, atol=1e-4)
    assert state.obs[2] == pytest.approx(9.81, abs=1e-3)


@pytest.mark.parametrize(
    ("place", "velocity", "reward"),
    [
        ((1.5, 0.0), (0.0, 1.0), 0.1),
        ((0.0, -1.5), (1.0, 0.0), 0.1),
        ((0.0, 1.5), (1.0, 0.0), -0.1),
        ((1.5, 0.0), (1.0, 0.0), 0.0),
        ((0.3, 0.4), (-0.8, 0.6), 0.05),
        ((3.0, 0.0), (0.5, 1.0), 0.04),
        ((0.0, 0.0), (1.0, 1.0), 0.0),
        ((0.0, 1.5), (-1e4, 0.0), 10.0),
    ],
)
def test_reward_by_hand(place: tuple[float, float], velocity: tuple[float, float], reward: float):
    assert circle.circling(jnp.array(place), jnp.array(velocity)) == pytest.approx(reward, abs=1e-7)


@pytest.mark.parametrize(
    ("place", "levels"),
    [
        ((0.0, 0.0), ()),
        ((1.125, -1.125), ()),
        ((1.126, 0.0), (1, 2)),
        ((-1.126, 0.0), (1, 2)),
        ((0.0, 1.126), (2,)),
        ((0.0, -1.126), (2,)),
        ((1.2, 1.2), (1, 2)),
    ],
)
def test_walls_by_hand(place: tuple[float, float], levels: tuple[int, ...]):
    assert tuple(level for level in (1, 2) if circle.is_beyond_wall(jnp.array(place), level)) == levels


def bins(**values: float) -> np.ndarray:
    """A lidar's reading: b3=0.5 puts 0.5 into bin 3."""
    reading = np.zeros(16)
    for name, value in values.items():
        reading[int(name[1:])] = value
    return reading


@pytest.mark.parametrize(
    ("distance", "angle", "reading"),
    [
        (3.0, 0.0, bins(b15=0.5, b0=0.5)),
        (3.0, 0.5, bins(b15=0.25, b0=0.5, b1=0.25)),
        (1.5, 3.75, bins(b2=0.1875, b3=0.75, b4=0.5625)),
        (1.5, 15.25, bins(b14=0.5625, b15=0.75, b0=0.1875)),
        (3.0, -1e-9, bins(b15=0.5, b0=0.5)),
        (6.5, 3.5, bins()),
        (0.0, 0.0, bins(b15=1.0, b0=1.0)),
    ],
)
def test_lidar_by_hand(distance: float, angle: float, reading: np.ndarray):
    """angle: in bins. A bin's neighbours share its reading by how near the centre is to them."""
    turn = angle * 2 * math.pi / 16
    offset = jnp.array([distance * math.cos(turn), distance * math.sin(turn)])
    np.testing.assert_allclose(circle.lidar(offset), reading, atol=1e-6)


def test_what_is_seen_from_a_tilted_car(car: circle.Circle):
    """The height counts before the turn into the car's axes; MuJoCo itself says what those are."""
    qpos, qvel = (np.array(part) for part in car.nominal)
    qpos[:7] = 1.0, -2.0, 0.5, 0.8, 0.4, -0.3, 0.6  # not of unit length: MuJoCo allows for that
    model = car.physics.mj_model
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    axes = data.body("agent").xmat.reshape(3, 3)
    seen = np.asarray(car.reset_to(jnp.asarray(qpos), jnp.asarray(qvel)).obs)
    np.testing.assert_allclose(seen[9:12], axes.T @ [0, -0.5, 0], atol=1e-6)
    x, y, _ = axes.T @ -qpos[:3].astype(float)
    within = math.atan2(y, x) % (2 * math.pi) * 16 / (2 * math.pi)
    assert seen[24:].argmax() == int(within)
    assert seen[24:].max() == pytest.approx(1 - math.hypot(x, y) / 6, abs=1e-6)


def test_a_step_is_judged_by_its_own_task():
    """From behind a wall in y, moving: cost at level 2 only; reward, metrics and clock as the state says."""
    for level in (1, 2):
        task = make("Point", level)
        start = task.reset_to(jnp.array([0.5, 1.3, 2.0]), jnp.array([-0.7, 0.2, 0.0]))
        late = dataclasses.replace(start, info={**start.info, "steps": jnp.asarray(498.0)})
        state = jax.jit(task.step)(late, jnp.array([1.0, -1.0]))
        mechanics = state.pipeline_state
        (x, y), (vx, vy) = np.asarray(mechanics.qpos[:2]), np.asarray(mechanics.qvel[:2])
        radius = math.hypot(x, y)
        assert state.info["cost"] == level - 1
        assert state.reward == pytest.approx(0.1 * (x * vy - y * vx) / radius / (1 + abs(radius - 1.5)), rel=1e-5)
        assert state.metrics["radius"] == pytest.approx(radius, rel=1e-6)
        assert state.metrics["speed"] == pytest.approx(math.hypot(vx, vy), rel=1e-6)
        assert not state.done
        state = jax.jit(task.step)(state, jnp.zeros((2,)))
        assert state.done and state.info["truncated"] and not state.info["terminated"]


@needs_graphics
@pytest.mark.parametrize("robot", AGENTS)
def test_pictures_show_the_walls_of_the_level(robot: str):
    reds = []
    for level in (1, 2):
        task = make(robot, level)
        qpos = np.asarray(task.pose(0.5, 0.5, 0.0))
        (picture,) = render.frames(task.physics.mj_model, qpos[None], width=240, height=180)
        red, green, blue = np.moveaxis(picture.astype(int), -1, 0)
        reds.append(int(np.sum((red - green > 60) & (np.abs(green - blue) < 40))))
    assert reds[0] > 300 and 1.5 * reds[0] < reds[1] < 4 * reds[0], reds
