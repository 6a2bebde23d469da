"""Ball, Drone and Ant of the run tasks against traces of the original engine (goldens/run.json), and by hand."""

import dataclasses
import functools
import json
import math
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from traces_jax import tasks
from traces_jax.tasks import rotation, run, run_ant, run_drone

GOLDENS = json.loads((pathlib.Path(__file__).parent / "goldens" / "run.json").read_text(encoding="utf-8"))
BALL, DRONE, ANT = (f"Safety{robot}Run-v0" for robot in ("Ball", "Drone", "Ant"))


@pytest.fixture(scope="module")
def made():
    return {name: tasks.make(name) for name in (BALL, DRONE, ANT)}


def actions_of(task, golden):
    if isinstance(golden["action"], list):
        return np.tile(np.asarray(golden["action"], np.float32), (golden["nsteps"], 1))
    # "0.8*sin(0.2*t+i)"
    times, indices = np.arange(golden["nsteps"])[:, None], np.arange(task.action_size)[None]
    return (0.8 * np.sin(0.2 * times + indices)).astype(np.float32)


@functools.partial(jax.jit, static_argnums=0)
def play(task, start, actions):
    """All states after the start, stacked."""
    return lax.scan(lambda state, action: (task.step(state, action),) * 2, start, actions)[1]


def replay_golden(task, golden):
    """Start and all following states of a golden run."""
    start = task.reset_to(*task.nominal)
    return start, play(task, start, actions_of(task, golden))


def at_golden_steps(states, golden):
    rows = np.asarray(golden["steps"]) - 1
    mechanics = states.pipeline_state
    return mechanics.qpos[rows, :3], mechanics.qvel[rows, :3], states.reward[rows]


# Ball.


@pytest.mark.parametrize("name", GOLDENS[BALL]["runs"])
def test_ball_follows_the_original(made, name):
    golden = GOLDENS[BALL]["runs"][name]
    _, states = replay_golden(made[BALL], golden)
    position, velocity, _ = at_golden_steps(states, golden)
    # The figure to hold is 2 %; half a percent of the largest speed is reached.
    fastest = np.abs(golden["vel"]).max()
    np.testing.assert_allclose(position, golden["pos"], rtol=0.005, atol=0.01)
    np.testing.assert_allclose(velocity, golden["vel"], rtol=0, atol=0.005 * fastest + 1e-5)
    assert float(states.reward.sum()) == pytest.approx(golden["ret"], rel=0.001, abs=1e-3)
    assert float(states.info["cost"].sum()) == golden["cost"]


def test_ball_that_coasts_slows_as_the_original(made):
    """Thirty steps at full push, then none: speeds after 1, 21 and 56 of those."""
    actions = np.zeros((86, 2), np.float32)
    actions[:30, 0] = 1.0
    states = play(made[BALL], made[BALL].reset_to(*made[BALL].nominal), actions)
    speed = np.asarray(states.pipeline_state.qvel[:, 0])
    np.testing.assert_allclose(speed[[30, 50, 85]], [6.84, 5.22, 3.51], rtol=0.01)


def test_ball_reads_its_spin_in_the_world(made):
    """Rolling along x turns about +y, whichever way the ball has been turned before."""
    golden = GOLDENS[BALL]["runs"]["full_x"]
    _, states = replay_golden(made[BALL], golden)
    rolling = states.pipeline_state.qvel[:, 0] / 0.5
    np.testing.assert_allclose(states.obs[:, 4:7], np.stack([0 * rolling, 0.1 * rolling, 0 * rolling], 1), atol=0.02)


def test_a_ball_that_lies_still_stays_there(made):
    _, states = replay_golden(made[BALL], GOLDENS[BALL]["runs"]["zero"])
    assert float(jnp.abs(states.pipeline_state.qvel).max()) < 1e-5
    assert float(jnp.abs(states.reward).max()) < 1e-6


# Drone.


def free_flight_actions(name):
    times = np.arange(60)[:, None]
    if name == "ff_pitch":
        sign = np.select([times < 10, times < 20], [1.0, -1.0], 0.0)
        return (sign * np.array([-0.1, 0.0, 0.1, 0.0])).astype(np.float32)
    if name == "ff_sine":
        return (0.3 * np.sin(0.2 * times + np.arange(4) * math.pi / 2)).astype(np.float32)
    return np.tile(np.asarray([0.5, -0.5, 0.5, -0.5] if name == "ff_yaw" else [0.0] * 4, np.float32), (60, 1))


@pytest.mark.parametrize("name", GOLDENS[DRONE]["free_flight"])
def test_drone_in_free_flight_follows_the_original(made, name):
    """The figure to hold is 5 %; half a percent of the largest value is reached."""
    golden = GOLDENS[DRONE]["free_flight"][name]
    task = made[DRONE]
    qpos, qvel = task.nominal
    start = task.reset_to(qpos.at[2].set(5.0), qvel)
    hover = run_drone.HOVER_SPEED * jnp.asarray(run_drone.DIRECTIONS)
    start = dataclasses.replace(start, info={**start.info, "rotors": hover})
    states = play(task, start, free_flight_actions(name))
    position, velocity, reward = at_golden_steps(states, golden)
    spin = states.obs[np.asarray(golden["steps"]) - 1, 10:13] / 0.1

    def close(ours, theirs, share):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=share * np.abs(theirs).max() + 2e-6)

    close(position - np.array([0, 0, 5]), np.asarray(golden["pos"]) - np.array([0, 0, 5]), 0.005)
    close(velocity, golden["vel"], 0.005)
    close(spin, golden["angvel_world"], 0.01)
    close(reward, golden["reward"], 0.005)


def test_drone_climbs_as_the_original(made):
    golden = GOLDENS[DRONE]["runs"]["climb_full"]
    _, states = replay_golden(made[DRONE], golden)
    position, velocity, _ = at_golden_steps(states, golden)
    np.testing.assert_allclose(position[:, 2], np.asarray(golden["pos"])[:, 2], rtol=1e-4)
    np.testing.assert_allclose(velocity[:, 2], np.asarray(golden["vel"])[:, 2], rtol=1e-3)
    assert float(states.reward.sum()) == pytest.approx(golden["ret"], abs=0.1)


@pytest.mark.parametrize("name", ["hover_zero", "low"])
def test_drone_that_cannot_rise_stays_on_the_floor(made, name):
    """Alive, and paying for the floor: nothing to gain."""
    _, states = replay_golden(made[DRONE], GOLDENS[DRONE]["runs"][name])
    assert float(states.reward.sum()) == pytest.approx(GOLDENS[DRONE]["runs"][name]["ret"], abs=0.3)
    np.testing.assert_allclose(states.pipeline_state.qpos[:, 2], 0.17, atol=1e-3)


def test_drone_turns_as_the_original(made):
    golden = GOLDENS[DRONE]["runs"]["yaw"]
    _, states = replay_golden(made[DRONE], golden)
    spin = np.asarray(states.obs[:, 12]) / 0.1
    np.testing.assert_allclose(spin[[0, 9, 49, 199]], [-0.7355, -3.673, -12.62, -17.64], rtol=0.015)
    assert float(states.reward.sum()) == pytest.approx(golden["ret"], rel=0.03)


def test_drone_starts_with_its_rotors_at_rest(made):
    np.testing.assert_allclose(
        made[DRONE].reset_to(*made[DRONE].nominal).obs, GOLDENS[DRONE]["runs"]["hover_zero"]["obs0"], atol=3e-5
    )


def test_a_drone_on_its_back_is_lost(made):
    """Minus ten once, and the episode is over."""
    qpos, qvel = made[DRONE].nominal
    upside_down = qpos.at[2].set(5.0).at[3:7].set(jnp.array([0.0, 1.0, 0.0, 0.0]))
    state = made[DRONE].step(made[DRONE].reset_to(upside_down, qvel), jnp.zeros((4,)))
    assert float(state.info["terminated"]) == 1.0
    assert float(state.info["truncated"]) == 0.0
    assert float(state.reward) == pytest.approx(-10.0, abs=0.1)


def test_thrust_at_hover_carries_the_weight():
    force = run_drone.thrust(jnp.full((4,), run_drone.HOVER_SPEED), jnp.zeros(()))
    np.testing.assert_allclose(force, 1.42 * 9.81 / 4, rtol=1e-4)
    np.testing.assert_allclose(run_drone.thrust(1.1 * jnp.full((4,), run_drone.HOVER_SPEED), 0.0), 4.213886, rtol=1e-5)


@pytest.mark.parametrize(
    ("turn", "touching"),
    [
        # Level at 0.17 the box stands on the floor; the discs are 0.185 above it.
        (0.0, [True, False, False, False, False]),
        # Leaning on the front edge by 40 degrees the front disc is below the floor as well.
        (40.0, [True, True, False, False, False]),
    ],
)
def test_parts_of_the_drone_that_touch(turn, touching):
    half = 0.5 * math.radians(turn)
    quaternion = jnp.array([math.cos(half), 0.0, math.sin(half), 0.0])
    np.testing.assert_array_equal(run_drone.lowest_points(jnp.asarray(0.17), quaternion) < 1e-4, touching)


# Ant.


def test_ant_falls_and_stands_as_the_original(made):
    golden = GOLDENS[ANT]["runs"]["zero"]
    start, states = replay_golden(made[ANT], golden)
    np.testing.assert_allclose(start.obs, golden["obs0"], atol=1e-6)
    position, velocity, _ = at_golden_steps(states, golden)
    airborne = np.asarray(golden["steps"]) <= 3
    np.testing.assert_allclose(position[airborne], np.asarray(golden["pos"])[airborne], atol=1e-5)
    np.testing.assert_allclose(velocity[airborne], np.asarray(golden["vel"])[airborne], atol=1e-5)
    np.testing.assert_allclose(position[~airborne, 2], 0.6457, atol=0.005)
    np.testing.assert_array_equal(states.obs[-1, -4:], np.ones(4))


@pytest.mark.parametrize("name", ["half", "full_alt", "sine"])
def test_ant_moves_its_legs_in_the_air_as_the_original(made, name):
    """Until the hips reach their limits, which Bullet lets them pass; what Bullet does there is not followed."""
    golden = GOLDENS[ANT]["runs"][name]
    _, states = replay_golden(made[ANT], golden)
    position, velocity, _ = at_golden_steps(states, golden)
    first = np.asarray(golden["steps"]) <= (1 if name == "full_alt" else 2)
    np.testing.assert_allclose(position[first], np.asarray(golden["pos"])[first], rtol=0.01, atol=2e-4)
    np.testing.assert_allclose(velocity[first], np.asarray(golden["vel"])[first], rtol=0.01, atol=2e-3)


def test_foot_heights_are_those_of_the_model(made):
    import mujoco

    model = made[ANT].physics.mj_model
    data = mujoco.MjData(model)
    qpos, _ = made[ANT].nominal
    qpos = qpos.at[3:7].set(jnp.array([0.9, 0.2, -0.3, 0.1]) / math.sqrt(0.95)).at[7:].add(jnp.linspace(-0.5, 0.4, 8))
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    lowest = []
    for leg in ("front_left", "front_right", "left_back", "right_back"):
        geom = model.geom(f"{leg}_foot").id
        axis = data.geom_xmat[geom].reshape(3, 3)[:, 2]
        lowest.append(data.geom_xpos[geom, 2] - abs(axis[2]) * model.geom_size[geom, 1] - model.geom_size[geom, 0])
    np.testing.assert_allclose(run_ant.foot_heights(qpos), lowest, atol=1e-6)


def test_an_ant_on_its_back_is_lost(made):
    """It then lies on its trunk, whose radius is 0.25."""
    qpos, _ = made[ANT].nominal
    on_its_back = qpos.at[2].set(0.25).at[3:7].set(jnp.array([0.0, 1.0, 0.0, 0.0]))
    state = made[ANT].step(made[ANT].reset_to(on_its_back, jnp.zeros((14,))), jnp.zeros((8,)))
    assert float(state.info["terminated"]) == 1.0
    assert float(state.reward) == pytest.approx(-1.0, abs=0.05)


def test_ant_pays_for_actions_beyond_their_bounds(made):
    start = made[ANT].reset_to(*made[ANT].nominal)
    within, beyond = (made[ANT].step(start, size * jnp.ones((8,))) for size in (1.0, 3.0))
    np.testing.assert_array_equal(within.pipeline_state.qpos, beyond.pipeline_state.qpos)
    speed = jnp.mean(jnp.abs(within.pipeline_state.qvel[6:]))
    # 0.1 (9 - 1) for the squares, 2 * 0.1 * speed * (3 - 1) for the power.
    chex.assert_trees_all_close(within.reward - beyond.reward, 0.8 + 0.4 * speed, atol=1e-4)


# All of them.


@pytest.mark.parametrize(("name", "tolerance"), [(BALL, 2.0), (ANT, 2.0)])
def test_random_policy_does_as_well_as_in_the_original(made, name, tolerance):
    """Mean return within two standard errors of the original's mean, and cost within two of its deviations."""
    task, golden = made[name], GOLDENS[name]["random_policy"]

    def episode(key):
        start_key, action_key = jax.random.split(key)
        actions = jax.random.uniform(action_key, (task.horizon, task.action_size), minval=-1, maxval=1)
        _, rows = lax.scan(
            lambda state, action: (lambda next_: (next_, (next_.reward, next_.info["cost"])))(task.step(state, action)),
            task.reset(start_key),
            actions,
        )
        return jax.tree.map(jnp.sum, rows)

    returns, costs = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 200))
    error = golden["ret_std"] / math.sqrt(golden["n_episodes"]) + float(returns.std()) / math.sqrt(200)
    assert abs(float(returns.mean()) - golden["ret_mean"]) < tolerance * error
    assert abs(float(costs.mean()) - golden["cost_mean"]) < tolerance * golden["cost_std"]


def test_cost_is_for_leaving_the_lane_and_for_speed(made):
    qpos, qvel = made[BALL].nominal
    step = jax.jit(made[BALL].step)

    def cost(y, velocity):
        return float(
            step(made[BALL].reset_to(qpos.at[1].set(y), qvel.at[0].set(velocity)), jnp.zeros((2,))).info["cost"]
        )

    assert cost(1.9, 0.0) == 0.0
    assert cost(2.1, 0.0) == 1.0
    assert cost(-2.1, 0.0) == 1.0
    assert cost(0.0, 3.6) == 1.0  # of which a ball that starts to roll keeps 5 / 7: 2.57


def test_progress_keeps_small_steps():
    """A step of a tenth of a millimetre, 30 m down the lane, would be lost between two distances of a kilometre."""
    before, after = jnp.array([30.0, 1.0]), jnp.array([30.0001, 1.0])
    moved = float(after[0] - before[0])  # what float32 leaves of it
    assert float(run.progress(before, after)) == pytest.approx(moved, rel=1e-4)
    assert float(run.progress(jnp.array([1000.0, 3.0]), jnp.array([1000.0, 1.0]))) == pytest.approx(2.0)


def test_fall_is_that_of_the_first_observations():
    height, velocity = run.fall(0.75, 4)
    assert height == pytest.approx(0.7431901, abs=1e-7)
    assert velocity == pytest.approx(-0.3268054, abs=1e-7)


@pytest.mark.parametrize("name", [BALL, DRONE, ANT])
def test_starts_differ_by_the_noise_of_the_original(made, name):
    states = jax.vmap(made[name].reset)(jax.random.split(jax.random.key(1), 500))
    offset = np.asarray(states.pipeline_state.qpos - made[name].nominal[0])
    np.testing.assert_allclose(np.abs(offset[:, :2]).max(axis=0), 0.01, rtol=0.05)
    assert np.all(offset[:, 2:7] == 0)
    if name == ANT:
        np.testing.assert_allclose(np.abs(offset[:, 7:]).max(axis=0), 0.1, rtol=0.05)
    assert np.all(np.asarray(states.info["cost"]) == 0)


def test_rotation_turns_vectors_into_the_world():
    """A quarter turn about z takes x to y."""
    quarter = jnp.array([math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)])
    chex.assert_trees_all_close(rotation.rotate(quarter, jnp.array([1.0, 0, 0])), jnp.array([0.0, 1.0, 0]), atol=1e-6)
    chex.assert_trees_all_close(rotation.scalar_last(jnp.arange(4.0)), jnp.array([1.0, 2.0, 3.0, 0.0]))
