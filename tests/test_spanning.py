"""Episodes that span iterations: cut anywhere, they are what they would be in one piece."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, make_config

from traces_jax import sources, tasks
from traces_jax.config import ConfigError
from traces_jax.core import learner, rollout, spanning
from traces_jax.core.spread import Spread
from traces_jax.estimator import network
from traces_jax.feedback import trajectories

HORIZON = 8
COUNT = 6


def settings(steps, **changes):
    return make_config(
        **{
            "task": "ProbeHistory",
            "physics": "native",
            "steps": COUNT * steps * 40,
            "environment": {"count": COUNT, "steps": steps, "reset_each_iteration": False},
            "ppo": {"minibatch": 2 * steps, "passes": 1},
            "policy": {"hidden": (4,)},
            "critic": {"hidden": (4,)},
            "estimator": {"hidden": 3, "decoder": (4,)},
            "method": {"source": "traces"},
            "constraint": {"cost_limit": 2.0},
            "labels": {"interval": 2},
            "pool": {"tracked": COUNT},
            # Rare queries, so that the pool holds all episodes.
            "query": {"fraction": 0.5, "batch": 20},
            "refit": {"store": 64, "passes": 1, "steps": 2, "new_batch": 2, "stored_batch": 2},
            **changes,
        }
    )


def make(config):
    task = tasks.make(config.task, backend="native")
    return learner.make(config, task, environments=Spread(), one_lane_at_a_time=False)


@dataclasses.dataclass
class Played:
    """Rollouts one after the other, without learning."""

    transitions: rollout.Transitions
    truth: rollout.Truth
    cost: jax.Array
    state: learner.LearnerState
    row: dict


def play(config, *, iterations, refit_at=None, seed=3):
    """Iterations without a policy update, with the same noise however they are cut.

    refit_at: the iteration in which the estimator is replaced by another one, as a refit would do.
    """
    made = make(config)
    key, steps = jax.random.key(seed), config.environment.steps
    noise = jax.random.normal(jax.random.key(9), (iterations * steps, COUNT, 1))
    state = jax.jit(made.init)(config, key)

    def iteration(state, index, noise, refitted):
        memory = made.source.resume(config, state.source, state.runner.memory.source, jnp.arange(COUNT))
        runner = state.runner.replace(memory=state.runner.memory.replace(source=memory))
        keys = rollout.environment_keys(key, 0, COUNT)
        runner, transitions, truth = rollout.run(made.task, made.player(config, state), runner, noise, keys)
        state = dataclasses.replace(state, runner=runner)
        collected = sources.Collected(
            transitions=transitions,
            truth=truth,
            statistics=state.normalizers.observation,
            windows=state.windows,
            iteration=index,
            plays_mean=jnp.zeros(COUNT, bool),
            memory=runner.memory.source,
        )
        source, reading = made.source.observe(config, state.source, collected)
        if refitted:
            source = dataclasses.replace(source, fitted=made.source.fresh(config, jax.random.key(77)))
        source, verdict, row = made.source.verdict(config, source, collected, reading, refitted, key)
        return dataclasses.replace(state, source=source), transitions, truth, verdict.cost, row

    compiled = jax.jit(iteration, static_argnums=3)
    found = []
    for index in range(iterations):
        part = noise[index * steps : (index + 1) * steps]
        state, *rest = compiled(state, jnp.int32(index), part, index == refit_at)
        found.append(rest)
    joined = [
        jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts) for parts in list(zip(*found, strict=True))[:3]
    ]
    return made, Played(*joined, state=state, row=found[-1][3])


@pytest.fixture(scope="module")
def whole():
    """Three times a whole horizon."""
    return play(settings(HORIZON), iterations=3)[1]


@pytest.mark.parametrize("steps", [4, 3, 12])
def test_however_it_is_cut_it_is_the_same(whole, steps):
    """Transitions, episode sums, labels, credits and what is open at the end."""
    _, cut = play(settings(steps), iterations=3 * HORIZON // steps)
    assert_trees_close(cut.transitions, whole.transitions, atol=1e-6)
    assert_trees_close(cut.truth, whole.truth, atol=1e-6)
    np.testing.assert_allclose(cut.cost, whole.cost, rtol=1e-5, atol=1e-7)
    ours, theirs = cut.state.source, whole.state.source
    assert int(whole.truth.ended.sum()) == 13 and int(theirs.seen) == 13
    assert_trees_close(ours.judged, theirs.judged, rtol=1e-5)
    for name in ("length", "memory", "sums"):
        assert_trees_close(getattr(ours.open, name), getattr(theirs.open, name), rtol=1e-4, atol=1e-6)
    rows, expected = by_time(ours.pool, steps), by_time(theirs.pool, HORIZON)
    assert rows.keys() == expected.keys() and len(rows) > 3
    for when, row in rows.items():
        assert_trees_close(row, expected[when], atol=1e-6)


def by_time(pool, steps):
    """The trajectories of a pool by environment and time of their first step since the start of the run."""
    origin, rows = pool.rows.origin, pool.rows.rows
    return {
        (int(origin.environment[n]), int(origin.iteration[n]) * steps + int(origin.first[n])): jax.tree.map(
            lambda leaf, n=n: leaf[n], rows
        )
        for n in range(rows.count)
        if rows.length[n]
    }
