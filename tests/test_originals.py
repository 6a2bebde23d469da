"""Policies that leave JAX: the same actions in NumPy, and episodes counted rightly where they are played."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config

from benchmarks import originals, plain_policy
from traces_jax import tasks
from traces_jax.core import learner, normalize
from traces_jax.core.spread import Spread

_STEPS = 60


def make(**changes):
    """A learner with random weights, and statistics as if it had seen something."""
    config = make_config(task="SafetyBallRun-v0", environment={"count": 2, "steps": 100}, **changes)
    task = tasks.make(config.task, backend="native")
    made = learner.make(config, task, environments=Spread(), one_lane_at_a_time=False)
    state = made.init(config, jax.random.key(3))
    observation_key, summary_key = jax.random.split(jax.random.key(4))
    observed = 2.0 + 3.0 * jax.random.normal(observation_key, (50, task.observation_size))
    normalizers = dataclasses.replace(
        state.normalizers, observation=normalize.update(state.normalizers.observation, observed)
    )
    if state.normalizers.summary is not None:
        summaries = 0.1 + 0.3 * jax.random.normal(summary_key, (50, config.estimator.hidden))
        normalizers = dataclasses.replace(normalizers, summary=normalize.update(state.normalizers.summary, summaries))
    return config, made, dataclasses.replace(state, normalizers=normalizers)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"source": "traces"}},
        {"method": {"source": "traces"}, "estimator": {"normalize_inputs": False, "depth": 1, "hidden": 6}},
        {"policy": {"activation": "tanh", "mean": "free", "hidden": (16,)}, "normalize": {"observations": False}},
    ],
    ids=["traces", "raw inputs", "no memory"],
)
def test_numpy_acts_as_jax_does(changes):
    config, made, state = make(**changes)
    player = made.player(config, state)
    observations = 2.0 + 6.0 * jax.random.normal(jax.random.key(5), (_STEPS, 1, made.task.observation_size))

    def step(memory, observation):
        action = player.act(observation, player.summarize(memory.source), memory.solver, jnp.zeros((1, 2)))
        return player.remember(memory, observation, action, jnp.zeros(1)), action[0]

    _, expected = jax.lax.scan(step, player.begin(1), observations)
    policy = plain_policy.export(config, jax.device_get(state))
    memory, actions = plain_policy.begin(policy), []
    for observation in np.asarray(observations[:, 0]):
        action, memory = plain_policy.act(policy, memory, observation)
        actions.append(action)
    assert np.std(expected, axis=0).min() > 1e-3, "the actions differ from step to step"
    np.testing.assert_allclose(actions, expected, atol=1e-5)


def test_a_file_keeps_the_policy(tmp_path: pathlib.Path):
    config, _, state = make(method={"source": "traces"})
    policy = plain_policy.export(config, jax.device_get(state))
    np.savez(tmp_path / "policy.npz", **policy)
    with np.load(tmp_path / "policy.npz") as found:
        again = dict(found)
    observation = np.linspace(-1, 1, 7)
    action, _ = plain_policy.act(again, plain_policy.begin(again), observation)
    np.testing.assert_array_equal(action, plain_policy.act(policy, plain_policy.begin(policy), observation)[0])


@pytest.mark.parametrize(("early_end_violates", "accepted"), [(True, [1, 0, 0]), (False, [1, 1, 0])])
def test_episodes_are_counted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, early_end_violates, accepted):
    """Episode 0 costs 2 and runs its time, 1 costs 2 and ends early, 2 costs 3; the limit is 2; a step rewards 0.5."""
    played = {"episode": 0, "time": 0}

    def reset(seed: int) -> np.ndarray:
        played.update(episode=seed, time=0)
        return np.zeros(7)

    def step(action: np.ndarray) -> tuple:
        assert action.shape == (2,)
        played["time"] += 1
        cost = played["time"] <= (3 if played["episode"] == 2 else 2)
        return np.zeros(7), 0.5, cost, played["episode"] == 1 and played["time"] == 3, played["time"] == 4

    monkeypatch.setattr(originals, "_original", lambda task, terminate: (reset, step))
    config, _, state = make()
    policy = {
        **plain_policy.export(config, jax.device_get(state)),
        "task": "SafetyBallRun-v0",
        "terminate_when_unhealthy": False,
        "episodes": 3,
        "limit": 2.0,
        "early_end_violates": early_end_violates,
    }
    np.savez(tmp_path / "policy.npz", **policy)
    originals.perform(str(tmp_path / "policy.npz"), str(tmp_path / "played.npz"))
    found = np.load(tmp_path / "played.npz")
    np.testing.assert_array_equal(found["return"], [2.0, 1.5, 2.0])
    np.testing.assert_array_equal(found["cost"], [2, 2, 3])
    np.testing.assert_array_equal(found["accepted"], accepted)


def test_rows_are_means_over_seeds():
    values = np.asarray([[1.0, 3.0], [5.0, 7.0]])
    assert originals._spread(values, "cost") == "4.0 (2.0)"
    assert originals._spread(values[:1], "return") == "2.0"
    assert originals._spread(np.asarray([[1, 0], [1, 1]]), "accepted") == "75 % (25)"
