"""Where other solvers, sources and labelers go in: a solver that carries a budget, a labeler outside the program."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config

from traces_jax import solvers, sources, tasks
from traces_jax.core import episodes, learner, rollout
from traces_jax.core.spread import Spread

BUDGET = 3.0
SETTINGS = {
    "task": "ProbeBudget",
    "physics": "native",
    "steps": 320,
    "environment": {"count": 4, "steps": 20},
    "ppo": {"minibatch": 20, "passes": 2},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
    "constraint": {"cost_limit": BUDGET},
    "labels": {"interval": 2},
    "query": {"fraction": 0.5, "batch": 4},
    "refit": {"store": 16, "passes": 2, "steps": 3, "new_batch": 2, "stored_batch": 4},
}


class Spending(solvers.PPOLag):
    """PPO-Lagrangian whose policy reads what is left of a budget, and earns nothing once it is spent."""

    def carried_size(self, config):
        return 1

    def begin(self, config, count):
        return jnp.full((count, 1), BUDGET)

    def carry(self, config, carried, cost, budget):
        return carried - cost[:, None]

    def shape_reward(self, config, reward, carried):
        return jnp.where(carried[..., 0] > 0, reward, -7.0)


def make(source, *, solver=solvers.PPOLag, watch=None):
    """A learner on one device, its config and its first state."""
    config = make_config(**SETTINGS, method={"source": source})
    task = tasks.make("ProbeBudget", backend="native")
    made = learner.make(config, task, environments=Spread(), one_lane_at_a_time=False, watch=watch)
    made = dataclasses.replace(made, solver=solver(made.solver.modules, horizon=10, one_lane_at_a_time=False))
    return config, made, jax.jit(made.init)(config, jax.random.key(3))


def played(config, made, state):
    return jax.jit(made.collect)(config, state, 0)


def left_after(cost, ended):
    """What is left of the budget after each step [T, B]."""
    return BUDGET - np.asarray(episodes.running_sum(jnp.asarray(cost), ended))


def test_a_solver_carries_a_budget_through_each_episode():
    config, made, state = make("oracle", solver=Spending)
    state, transitions, truth = played(config, made, state)
    left = left_after(truth.cost, truth.ended)
    np.testing.assert_allclose(transitions.next_carried[..., 0], left, atol=1e-5)
    # A new episode begins with all of it.
    began = np.concatenate([np.ones_like(truth.ended[:1]), truth.ended[:-1]])
    before = np.where(began, BUDGET, np.concatenate([left[:1], left[:-1]]))
    np.testing.assert_allclose(transitions.carried[..., 0], before, atol=1e-5)
    assert truth.ended.sum() == 8 and (left < 0).any(), "episodes must end, and budgets be spent"
    np.testing.assert_array_equal(state.runner.memory.solver, np.full((4, 1), BUDGET))


def test_a_learned_cost_can_be_carried_as_well():
    """While an episode runs, its steps cost what the estimator says of them afterwards."""
    config, made, state = make("traces", solver=Spending)
    _, transitions, truth = played(config, made, state)
    ends = jnp.asarray(truth.ended)
    one = lambda values: values[:10]  # noqa: E731  the first episodes
    credit = made.source.credits(
        config, state.source, state.normalizers.observation, one(transitions.observation), one(transitions.action)
    ).credit
    np.testing.assert_allclose(one(transitions.next_carried)[..., 0], left_after(credit, one(ends)), rtol=1e-4)


def test_the_policy_reads_what_is_carried():
    config, made, state = make("oracle", solver=Spending)
    sizes = {leaf.shape for leaf in jax.tree.leaves(state.agent.actor.params)}
    assert (2, 8) in sizes, "observation and budget"
    observation, noise = jnp.zeros((2, 1)), jnp.zeros((2, 1))
    actions = made.act(config, state, observation, None, noise, jnp.asarray([[3.0], [-3.0]]))
    assert abs(float(actions[0, 0] - actions[1, 0])) > 1e-3


def test_a_solver_shapes_the_reward_that_is_learned_from():
    config, made, state = make("oracle", solver=Spending)
    after, _ = jax.jit(made.iteration)(config, state, 0)
    _, transitions, truth = played(config, made, state)
    spent = left_after(truth.cost, truth.ended) <= 0
    shaped = np.where(spent, -7.0, transitions.reward)
    assert spent.any()
    np.testing.assert_allclose(after.normalizers.reward.mean, shaped.mean(), rtol=1e-4)


def collected(config, made, state):
    _, transitions, truth = played(config, made, state)
    return sources.Collected(
        transitions=transitions,
        truth=truth,
        statistics=state.normalizers.observation,
        windows=state.windows,
        iteration=jnp.int32(0),
        plays_mean=jnp.zeros(config.environment.count, bool),
    )


def test_another_labeler_can_answer_between_ask_and_absorb():
    """The same answers from outside the program lead to the same state; other answers are what is stored."""
    config, made, state = make("traces")
    key = jax.random.fold_in(state.key, 0)
    seen = collected(config, made, state)
    pooled, _ = made.source.observe(config, state.source, seen)
    query = jax.jit(made.source.ask)(config, pooled, seen, key)
    said = jax.device_get(jax.jit(made.source.answer)(config, query, key))
    absorb = jax.jit(made.source.absorb)
    inside, _ = jax.jit(made.learn)(config, state, seen.transitions, seen.truth, jnp.int32(0), jnp.uint32(0))
    outside, _ = absorb(config, pooled, seen, query, said, key)
    for a, b in zip(jax.tree.leaves(outside.fitted), jax.tree.leaves(inside.source.fitted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outside.store.rows.labels, inside.source.store.rows.labels)
    # Somebody who rejects everything, and cannot tell of the last prefix.
    mask = np.asarray(query.rows.mask).copy()
    mask[:, -1] = False
    stern = sources.Answers(labels=jnp.zeros_like(query.rows.labels), mask=jnp.asarray(mask))
    other, row = absorb(config, pooled, seen, query, stern, key)
    picked = int(query.rows.valid.sum())
    assert picked == 4 and np.isnan(row["query/accepted_picked"]), "of no episode it is known whether it is accepted"
    assert not other.store.rows.labels[:picked].any()
    assert int(other.queries) == int(mask.sum()) == int(outside.queries) - picked


@pytest.mark.parametrize("watch", [None, lambda state: state.pipeline_state.qpos])
def test_a_picked_trajectory_can_be_found_again(watch):
    """By iteration, environment and first step; and drawn, if positions were watched."""
    config, made, state = make("traces", watch=watch)
    seen = collected(config, made, state)
    assert len(np.unique(seen.transitions.action)) == seen.transitions.action.size, "steps must differ"
    pooled, _ = made.source.observe(config, state.source, seen)
    query = made.source.ask(config, pooled, dataclasses.replace(seen, iteration=jnp.int32(5)), state.key)
    assert int(query.rows.valid.sum()) == 4 and (query.watched is None) == (watch is None)
    for row in range(4):
        first, environment, length = (
            int(value[row]) for value in (query.origin.first, query.origin.environment, query.rows.length)
        )
        steps = slice(first, first + length)
        found = seen.transitions.action[steps, environment]
        np.testing.assert_array_equal(query.rows.inputs[row, :length, 1:], found)
        if watch is not None:
            np.testing.assert_array_equal(query.watched[row, :length], seen.truth.watched[steps, environment])
    assert set(np.asarray(query.origin.iteration[:4])) == {0}
    assert len({(int(a), int(b)) for a, b in zip(query.origin.first, query.origin.environment, strict=True)}) == 4


def test_a_player_without_memory_needs_none():
    task = tasks.make("ProbeBudget", backend="native")
    keys = rollout.environment_keys(jax.random.key(0), 0, 2)
    player = rollout.Player(act=lambda observation, summary, carried, noise: noise)
    runner, transitions, _ = rollout.run(task, player, rollout.start(task, keys), jnp.zeros((5, 2, 1)), keys)
    assert transitions.summary is None and transitions.carried is None and runner.memory == rollout.Memory()
