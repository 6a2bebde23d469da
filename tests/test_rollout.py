"""Running environments: ends, resets and sums on probe tasks, then the velocity tasks on native physics."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from traces_jax import tasks
from traces_jax.core import rollout
from traces_jax.physics import PhysicsState


def start(task, count, seed=0):
    return rollout.start(task, rollout.environment_keys(jax.random.key(seed), 0, count))


@functools.partial(jax.jit, static_argnums=0)
def run(task, runner, actions, seed=1):
    """Plays actions [T, B, A] whatever is observed."""
    keys = rollout.environment_keys(jax.random.key(seed), 0, actions.shape[1])
    return rollout.run(
        task, rollout.Player(act=lambda observation, summary, carried, noise: noise), runner, actions, keys
    )


# --- Probe tasks ---------------------------------------------------------------------------------------------------


def test_next_observation_is_the_true_last_one():
    """ProbeDiscount counts 0, 1, 2 and ends. The state after the end is 2; the 0 of the reset comes a row later."""
    task = tasks.make("ProbeDiscount")
    _, transitions, truth = run(task, start(task, 2), jnp.zeros((5, 2, 1)))
    np.testing.assert_array_equal(transitions.observation[:, 0, 0], [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(transitions.next_observation[:, 0, 0], [1, 2, 1, 2, 1])
    np.testing.assert_array_equal(truth.ended[:, 1], [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(transitions.reward[:, 1], [0, 1, 0, 1, 0])


def test_what_is_watched_is_seen_before_the_reset():
    task = tasks.make("ProbeDiscount")
    keys = rollout.environment_keys(jax.random.key(1), 0, 2)
    quiet = rollout.Player(act=lambda observation, summary, carried, noise: noise)
    watch = lambda state: {"place": state.pipeline_state.qpos, "done": state.done}  # noqa: E731
    _, _, truth = rollout.run(task, quiet, start(task, 2), jnp.zeros((5, 2, 1)), keys, watch=watch)
    assert truth.watched["place"].shape == (5, 2, 1)
    np.testing.assert_array_equal(truth.watched["place"][:, 1, 0], [1, 2, 1, 2, 1])
    np.testing.assert_array_equal(truth.watched["done"], truth.ended)


def test_termination_and_truncation_are_apart():
    """ProbeDiscount ends for good; ProbeBudget runs out of time."""
    task = tasks.make("ProbeDiscount")
    _, transitions, _ = run(task, start(task, 1), jnp.zeros((4, 1, 1)))
    np.testing.assert_array_equal(transitions.terminated[:, 0], [0, 1, 0, 1])
    np.testing.assert_array_equal(transitions.truncated[:, 0], [0, 0, 0, 0])
    task = tasks.make("ProbeBudget")
    _, transitions, _ = run(task, start(task, 1), jnp.zeros((11, 1, 1)))
    np.testing.assert_array_equal(transitions.truncated[:, 0], [0] * 9 + [1, 0])
    np.testing.assert_array_equal(transitions.terminated[:, 0], [0] * 11)


def test_episode_sums():
    """ProbeBudget pays and charges the action clipped to [0, 1], ten steps at a time."""
    task = tasks.make("ProbeBudget")
    actions = np.random.default_rng(0).uniform(-0.5, 1.5, size=(25, 3, 1)).astype(np.float32)
    effort = np.clip(actions[..., 0], 0, 1)
    runner, transitions, truth = run(task, start(task, 3), actions)
    np.testing.assert_allclose(transitions.reward, effort, rtol=1e-6)
    np.testing.assert_allclose(truth.cost, effort, rtol=1e-6)
    assert np.nonzero(np.asarray(truth.ended).all(axis=1))[0].tolist() == [9, 19] and truth.ended.sum() == 6
    for end in (9, 19):
        episode = slice(end - 9, end + 1)
        np.testing.assert_allclose(truth.episode_return[end], effort[episode].sum(axis=0), rtol=1e-5)
        np.testing.assert_allclose(truth.episode_return[end], transitions.reward[episode].sum(axis=0), rtol=1e-5)
        np.testing.assert_allclose(truth.episode_cost[end], truth.cost[episode].sum(axis=0), rtol=1e-5)
        np.testing.assert_array_equal(truth.episode_length[end], [10, 10, 10])
    # The last five steps belong to an episode that goes on.
    np.testing.assert_allclose(runner.episode_return, effort[20:].sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(runner.environment.info["steps"], [5, 5, 5])


def test_episodes_go_on_across_calls():
    """Two calls of 7 and 8 steps see what one call of 15 sees."""
    task = tasks.make("ProbeBudget")
    actions = np.random.default_rng(1).uniform(0, 1, size=(15, 2, 1)).astype(np.float32)
    _, _, whole = run(task, start(task, 2), actions)
    runner, _, _ = run(task, start(task, 2), actions[:7])
    _, _, second = run(task, runner, actions[7:])
    np.testing.assert_array_equal(second.ended, whole.ended[7:])
    np.testing.assert_allclose(second.episode_return[2], whole.episode_return[9], rtol=1e-6)


def test_environments_end_apart():
    """Only the environment that ended is reset; its neighbour keeps its clock and its sums."""
    task = tasks.make("ProbeBudget")
    runner = start(task, 2)
    steps = runner.environment.info["steps"].at[0].set(6.0)
    runner = runner.replace(
        environment=runner.environment.replace(info={**runner.environment.info, "steps": steps}),
        episode_return=jnp.asarray([100.0, 0.0]),
    )
    _, _, truth = run(task, runner, jnp.ones((10, 2, 1)))
    assert np.argwhere(np.asarray(truth.ended)).tolist() == [[3, 0], [9, 1]]
    assert float(truth.episode_return[3, 0]) == 104.0 and float(truth.episode_return[9, 1]) == 10.0
    # After its end the first environment counts from zero again.
    np.testing.assert_array_equal(truth.episode_length[:, 0], [7, 8, 9, 10, 1, 2, 3, 4, 5, 6])


def test_every_reset_is_a_new_draw():
    """ProbeObservation starts at +1 or -1 in every step; a cached start would repeat."""
    task = tasks.make("ProbeObservation")
    _, transitions, truth = run(task, start(task, 3), jnp.zeros((64, 3, 1)))
    starts = np.asarray(transitions.observation[..., 0])
    assert truth.ended.all() and set(np.unique(starts)) == {-1.0, 1.0}
    for environment in range(3):
        assert 16 < (starts[:, environment] > 0).sum() < 48  # 5 sigma is 12 to 52
    assert not np.array_equal(starts[:, 0], starts[:, 1]) and not np.array_equal(starts[:, 1], starts[:, 2])
    # Another key, other starts; the first row is the start state and does not depend on it.
    _, other, _ = run(task, start(task, 3), jnp.zeros((64, 3, 1)), seed=2)
    np.testing.assert_array_equal(other.observation[0], transitions.observation[0])
    assert not np.array_equal(other.observation[1:], transitions.observation[1:])


def test_an_environment_keeps_its_stream_wherever_it_runs():
    """Devices hold parts of the environments; how many there are must not change what any of them sees."""
    key = jax.random.key(0)
    whole = rollout.environment_keys(key, 0, 6)
    part = rollout.environment_keys(key, 2, 3)
    assert jnp.array_equal(jax.random.key_data(whole[2:5]), jax.random.key_data(part))
    np.testing.assert_array_equal(rollout.noise(whole, 4, 2)[:, 2:5], rollout.noise(part, 4, 2))
    noise = np.asarray(rollout.noise(whole, 2000, 2))
    assert noise.shape == (2000, 6, 2)
    np.testing.assert_allclose([noise.mean(), noise.std()], [0, 1], atol=0.03)
    correlation = np.corrcoef(noise.reshape(2000, 12).T)
    assert np.abs(correlation - np.eye(12)).max() < 0.12, "environments and dimensions have noise of their own"


def test_a_learner_cannot_see_the_cost():
    """Costs reach a learner through labels or an explicit choice, never by riding along."""
    assert [field.name for field in dataclasses.fields(rollout.Transitions)] == [
        "observation", "summary", "next_summary", "carried", "next_carried",
        "action", "reward", "next_observation", "terminated", "truncated",
    ]  # fmt: skip


# --- Velocity tasks ------------------------------------------------------------------------------------------------

HOPPER, ANT = "SafetyHopperVelocity-v1", "SafetyAntVelocity-v1"


@functools.cache
def native(name, **settings):
    return tasks.make(name, backend="native", **settings)


@functools.partial(jax.jit, static_argnums=0)
def step_from(task, qpos, qvel, action):
    return task.step(task.reset_to(qpos, qvel), action)


def test_hopper_starts_are_random_and_within_bounds():
    task = native(HOPPER)
    states = jax.vmap(task.reset)(jax.random.split(jax.random.key(0), 200))
    qpos, qvel = np.asarray(states.pipeline_state.qpos), np.asarray(states.pipeline_state.qvel)
    nominal = np.asarray(task.physics.mj_model.qpos0)
    for noise in (qpos - nominal, qvel):
        # Uniform over +-0.005: never beyond, and close to the edge on both sides in 200 draws of every element.
        assert np.abs(noise).max() < 0.005 + 1e-6
        assert (noise.max(axis=0) > 0.0045).all() and (noise.min(axis=0) < -0.0045).all()
    assert len(np.unique(qpos, axis=0)) == 200
    assert abs(np.corrcoef(qpos[:, 0] - nominal[0], qvel[:, 0])[0, 1]) < 0.3, "one draw must not serve both"


def test_hopper_observation_is_qpos_without_x_then_clipped_qvel():
    task = native(HOPPER)
    qpos, qvel = task.nominal
    qpos, qvel = qpos + jnp.arange(6) / 100, jnp.asarray([1.0, -2.0, 3.0, -30.0, 30.0, 9.0])
    state = task.reset_to(qpos, qvel)
    assert task.observation_size == 11 == state.obs.shape[0]
    np.testing.assert_array_equal(state.obs[:5], qpos[1:])
    np.testing.assert_array_equal(state.obs[5:], [1, -2, 3, -10, 10, 9])


def test_an_action_beyond_the_bounds_moves_like_the_clipped_one_but_costs_more():
    task = native(HOPPER)
    action = jnp.asarray([1.5, -3.0, 0.5])
    beyond = step_from(task, *task.nominal, action)
    clipped = step_from(task, *task.nominal, jnp.clip(action, -1, 1))
    np.testing.assert_array_equal(beyond.obs, clipped.obs)
    np.testing.assert_array_equal(beyond.pipeline_state.qpos, clipped.pipeline_state.qpos)
    # 0.001 * (1.5^2 + 3^2 - 1 - 1)
    np.testing.assert_allclose(clipped.reward - beyond.reward, 0.00925, rtol=1e-3)


def test_hopper_reward_and_cost_by_hand():
    """Forward speed from x before and after a step of 8 ms, 1 for health, the cost above 0.7402 m/s."""
    task = native(HOPPER)
    qpos, qvel = task.nominal
    for speed, cost in [(0.5, 0.0), (1.0, 1.0), (-3.0, 0.0)]:
        state = step_from(task, qpos, qvel.at[0].set(speed), jnp.asarray([0.0, 0.5, 0.0]))
        forward = float(state.pipeline_state.qpos[0] - qpos[0]) / 0.008
        assert abs(forward - speed) < 0.2, "the robot keeps about the speed it started with"
        np.testing.assert_allclose(state.reward, forward + 1.0 - 0.001 * 0.25, rtol=1e-4)
        assert float(state.info["cost"]) == cost


@pytest.mark.parametrize("terminates", [True, False])
def test_a_fallen_hopper_ends_the_episode_only_if_asked(terminates):
    task = native(HOPPER, terminate_when_unhealthy=terminates)
    qpos, qvel = task.nominal
    fallen = step_from(task, qpos.at[2].set(1.5), qvel, jnp.zeros(3))  # pitch 1.5 is beyond 0.2
    assert float(fallen.info["terminated"]) == float(fallen.done) == float(terminates)
    assert float(fallen.info["truncated"]) == 0.0 == float(fallen.metrics["healthy"])
    assert float(fallen.info["broken"]) == 0.0, "falling is not a fault of the simulator"
    # No bonus for lying down; the reward of the speed stays.
    np.testing.assert_allclose(fallen.reward, fallen.metrics["speed"], rtol=1e-6)
    standing = step_from(task, qpos, qvel, jnp.zeros(3))
    assert float(standing.done) == 0.0 and float(standing.metrics["healthy"]) == 1.0


def test_the_clock_runs_out_after_a_thousand_steps():
    task = native(HOPPER)
    step = jax.jit(task.step)
    for steps, truncated in [(998.0, 0.0), (999.0, 1.0)]:
        state = task.reset_to(*task.nominal)
        state = step(state.replace(info={**state.info, "steps": jnp.float32(steps)}), jnp.zeros(3))
        assert float(state.info["truncated"]) == float(state.done) == truncated
        assert float(state.info["terminated"]) == 0.0


class Prescribed:
    """A simulator that moves to a state written down beforehand."""

    environment_seconds = 0.5

    def __init__(self, qpos, xpos):
        self._qpos, self._xpos = jnp.asarray(qpos, jnp.float32), jnp.asarray(xpos, jnp.float32)

    def reset(self, qpos, qvel):
        return PhysicsState(qpos=qpos, qvel=qvel, xpos=jnp.zeros(3), sensors=None, memory=jnp.zeros(0))

    def step(self, state, control):
        del control
        return state.replace(qpos=self._qpos, xpos=self._xpos)


def ant_step(height, xpos, **settings):
    """One step of an Ant to a given height and base position, in half a second."""
    task = tasks.make(ANT, backend="native", **settings)
    qpos, qvel = task.nominal
    task.physics = Prescribed(qpos.at[2].set(height), xpos)
    return task.step(task.reset_to(qpos, qvel), jnp.zeros(8))


@pytest.mark.parametrize(
    "height, healthy", [(0.2, 1.0), (0.5, 1.0), (1.0, 1.0), (0.199, 0.0), (1.001, 0.0)]
)  # fmt: skip
def test_ant_health_includes_its_bounds(height, healthy):
    state = ant_step(height, xpos=(0.0, 0.0, height))
    assert float(state.reward) == healthy == float(state.metrics["healthy"])
    assert float(ant_step(height, xpos=(0.0, 0.0, height), terminate_when_unhealthy=True).done) == 1.0 - healthy


def test_ant_is_paid_for_x_and_charged_for_the_speed_in_the_plane():
    # 0.6 m along x and 0.8 m along y in half a second: forward 1.2 m/s, speed 2 m/s, below 2.6222.
    slow = ant_step(0.5, xpos=(0.6, 0.8, 9.0))
    np.testing.assert_allclose([slow.reward, slow.metrics["speed"], slow.info["cost"]], [2.2, 2.0, 0.0], rtol=1e-5)
    # 3 m/s sideways: no forward speed, but a cost.
    fast = ant_step(0.5, xpos=(0.0, -1.5, 0.0))
    np.testing.assert_allclose([fast.reward, fast.metrics["speed"], fast.info["cost"]], [1.0, 3.0, 1.0], rtol=1e-5)


# --- Simulator states that are not numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [HOPPER, ANT])
@pytest.mark.parametrize("where, value", [("qvel", np.nan), ("qvel", np.inf), ("qpos", np.nan)])
def test_a_broken_simulator_state_ends_the_episode(name, where, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file where it runs
    task = native(name)
    start = dict(zip(("qpos", "qvel"), task.nominal, strict=True))
    start[where] = start[where].at[1].set(value)
    state = step_from(task, start["qpos"], start["qvel"], jnp.zeros(task.action_size))
    assert float(state.info["broken"]) == float(state.info["terminated"]) == float(state.done) == 1.0
    assert float(state.info["truncated"]) == 0.0
    np.testing.assert_array_equal(state.obs, np.zeros(task.observation_size))
    assert float(state.reward) == float(state.info["cost"]) == 0.0
    assert all(np.isfinite(value) for value in state.metrics.values())


@pytest.mark.parametrize("name", [HOPPER, ANT])
def test_the_runner_replaces_a_broken_environment_and_leaves_the_others_alone(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = native(name)
    actions = np.random.default_rng(0).uniform(-1, 1, size=(4, 3, task.action_size)).astype(np.float32)
    runner = start(task, 3)
    _, healthy, healthy_truth = run(task, runner, actions)
    qpos, qvel = task.nominal
    broken = task.reset_to(qpos, qvel.at[0].set(jnp.inf))
    environments = jax.tree.map(lambda all_, one: all_.at[1].set(one), runner.environment, broken)
    runner, transitions, truth = run(task, runner.replace(environment=environments), actions)
    np.testing.assert_array_equal(truth.broken, [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(truth.ended, np.asarray(truth.broken) == 1)
    # It goes on from a random start of its own, as finite as any.
    assert not np.array_equal(transitions.observation[1, 1], transitions.next_observation[0, 1])
    assert np.isfinite(transitions.next_observation).all() and np.isfinite(transitions.reward).all()
    assert float(runner.environment.info["steps"][1]) == 3.0
    assert all(np.isfinite(leaf).all() for leaf in (runner.environment.pipeline_state.qpos, runner.episode_return))
    # Its neighbours, before and after it in the batch, do not notice.
    others = np.asarray([0, 2])
    np.testing.assert_array_equal(transitions.next_observation[:, others], healthy.next_observation[:, others])
    np.testing.assert_array_equal(transitions.reward[:, others], healthy.reward[:, others])
    assert not healthy_truth.ended.any()
