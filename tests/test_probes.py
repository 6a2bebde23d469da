"""Whole training runs on tasks whose answers are known on paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config, train

from traces_jax.host.run import evaluation

pytestmark = pytest.mark.usefixtures("optimized")


def probe(task, iterations, *, environment, ppo, **changes):
    """Small networks, raw numbers, noise as it comes: nothing stands between a probe and its answer."""
    return make_config(
        task=task,
        steps=iterations * environment["count"] * environment["steps"],
        environment=environment,
        policy={"hidden": (64,), "activation": "tanh"},
        critic={"hidden": (16,), "activation": "tanh"},
        normalize={"observations": False, "rewards": False, "costs": "never"},
        ppo={"critic_lr": 1e-2, "gamma": 0.9, "entropy": 0.0, "reward_critic_l2": 0.0, "cost_critic_l2": 0.0} | ppo,
        run={"chunk": iterations, "checkpoint_every": iterations},
        **changes,
    )


def value_probe(task, iterations):
    """Critics alone: no policy changes anything here, so a policy that has moved far is no reason to stop."""
    return probe(
        task, iterations, environment={"count": 8, "steps": 16}, ppo={"minibatch": 32, "passes": 10, "target_kl": 1e6}
    )


def values(built, critic, observations):
    """Values [N] of observations [N] under a critic of the first lane."""
    params = jax.tree.map(lambda leaf: leaf[0], critic.params)
    return np.asarray(built.program.learner.solver.modules.value(params, jnp.asarray(observations)[:, None]))


def test_a_step_worth_one_has_value_one():
    """Bootstrapping past the termination would give 1 / (1 - gamma) = 10."""
    built, state, rows = train(value_probe("ProbeConstant", 10))
    np.testing.assert_allclose(values(built, state.agent.reward_critic, [0.0]), [1.0], atol=0.03)
    np.testing.assert_allclose(values(built, state.agent.cost_critic, [0.0]), [0.0], atol=0.03)
    np.testing.assert_array_equal(rows["episode/return"], np.ones((1, 10)))
    np.testing.assert_array_equal(rows["episode/length"], np.ones((1, 10)))


def test_the_value_of_a_later_reward_is_discounted():
    """gamma, then 1. A reset observation read as the next one would give the last state a future."""
    built, state, _ = train(value_probe("ProbeDiscount", 15))
    np.testing.assert_allclose(values(built, state.agent.reward_critic, [0.0, 1.0]), [0.9, 1.0], atol=0.03)


def test_the_policy_reads_its_observation():
    config = probe(
        "ProbeObservation", 30, environment={"count": 8, "steps": 16},
        ppo={"actor_lr": 1e-2, "minibatch": 32, "passes": 10, "target_kl": 0.1},
    )  # fmt: skip
    built, state, _ = train(config)
    one = jax.tree.map(lambda leaf: leaf[0], state)
    action = built.program.learner.act(config, one, jnp.asarray([[1.0], [-1.0]]), None, jnp.zeros((2, 1)))
    np.testing.assert_allclose(action[:, 0], [0.5, -0.5], atol=0.1)


def test_a_budget_is_spent_and_not_exceeded():
    """Every unit of return costs a unit, so the best return is the limit, or 10 where the limit does not bind.

    Limits lie below 5. A policy of pure noise costs 5 whatever the multiplier does. And above 5 the multiplier that
    balances grows with the cost (more actions are cut at 1, advantages shrink, and only those of rewards are scaled
    back), so that the balance is unstable.
    """
    limits, iterations = [2.0, 3.0, 100.0], 160
    config = probe(
        "ProbeBudget", iterations, environment={"count": 8, "steps": 30},
        ppo={"actor_lr": 1e-3, "actor_lr_decay": False, "minibatch": 60, "passes": 4, "target_kl": 0.05},
        lagrange={"initial": 1.5, "lr": 0.05, "window": 24}, sweep="constraint.cost_limit=2,3,100",
    )  # fmt: skip
    _, _, rows = train(config)
    late = {name: column[:, -60:].mean(axis=1) for name, column in rows.items()}
    np.testing.assert_allclose(late["episode/return"], late["episode/cost"], rtol=1e-4)
    np.testing.assert_allclose(late["episode/cost"][:2], limits[:2], atol=0.4)
    assert (late["constraint/multiplier"][:2] > 1.0).all()
    assert late["episode/return"][2] > 9.0 and late["constraint/multiplier"][2] < 0.01
    np.testing.assert_array_equal(rows["constraint/limit"], np.repeat(limits, iterations).reshape(3, iterations))
    # The clock ends these episodes, three of each of the eight environments in an iteration.
    np.testing.assert_array_equal(rows["episode/length"], np.full((3, iterations), 10.0))
    np.testing.assert_array_equal(rows["episode/count"], np.full((3, iterations), 24.0))


@pytest.mark.parametrize(("source", "iterations"), [("traces", 160), ("oracle", 60)])
def test_a_violation_that_depends_on_history_needs_a_memory(source, iterations):
    """Three actions are free. TraCeS takes just these; the true cost without a memory is of no use.

    Of four seeds three must do so: one may be caught on the wrong side of the border it walks along.
    """
    config = probe(
        "ProbeHistory", iterations, environment={"count": 16, "steps": 8},
        ppo={"actor_lr": 3e-3, "minibatch": 32, "passes": 8, "target_kl": 0.05},
        method={"source": source}, constraint={"cost_limit": 0.5 if source == "traces" else 0.1},
        labels={"interval": 1}, query={"fraction": 0.5},
        refit={"store": 256, "passes": 1, "steps": 10, "new_batch": 8, "stored_batch": 24, "lr": 1e-2},
        lagrange={"initial": 1.0, "window": 32}, seeds=4,
    )  # fmt: skip
    built, state, _ = train(config)
    played = evaluation.episodes(built, state, 20)
    safe, earned = np.all(played["cost"] == 0, axis=1), played["return"].mean(axis=1)
    if source == "traces":
        assert np.sum(safe & (earned > 2.5)) >= 3, (safe, earned)
    else:
        assert np.all(safe & (earned < 0.5)), (safe, earned)


@pytest.mark.parametrize("source", ["ct", "rlsf", "examples.noisy_or:NoisyOr"])
def test_the_guilty_steps_are_found(source):
    """Half of the first episodes have more than 3.5 hot steps. Then the policy leaves the hot place, when it must.

    C-T may use the threshold that it has learned, RLSF the one that it knows.
    """
    few = {"fraction": 1.0, "batch": 1} if source == "rlsf" else {"fraction": 0.125}
    config = probe(
        "ProbeHeat", 40, environment={"count": 64, "steps": 8},
        ppo={"actor_lr": 3e-3, "minibatch": 128, "passes": 8, "target_kl": 0.05},
        method={"source": source}, constraint={"cost_limit": 3.5}, rlsf={"alpha": 3.5}, query=few,
        labels={"interval": 1 if source == "rlsf" else 2},
        refit={"store": 256, "passes": 4, "steps": 20, "new_batch": 16, "stored_batch": 48, "lr": 1e-2},
        lagrange={"initial": 1.0, "window": 64},
    )  # fmt: skip
    built, state, rows = train(config)
    one = jax.tree.map(lambda leaf: leaf[0], state)
    # Eight steps in the cold place and eight in the hot one; the action is neither here nor there.
    observation = jnp.broadcast_to(jnp.asarray([-1.0, 1.0])[:, None], (8, 2, 1))
    said = built.program.learner.source.credits(
        config, one.source, one.normalizers.observation, observation, jnp.zeros((8, 2, 1))
    )
    cold, hot = np.asarray(said.credit)[0]
    late = {name: rows[name][0, -5:].mean() for name in ("episode/cost", "episode/return", "estimate/cost_where_none")}
    assert hot > 5 * cold, (cold, hot)
    if source in ("ct", "rlsf"):  # In 40 iterations the example finds the steps; the policy still enters the hot place.
        assert late["episode/cost"] < 4.0, late
    if source == "ct":
        np.testing.assert_allclose(np.exp(one.source.fitted.params.log_threshold) / hot, 3.5, atol=1.0)
    if source == "rlsf":
        assert (cold, hot) == (0.0, 1.0)
        # Both places were seen after the first query: nothing was novel any more, but what is known is fitted on.
        assert rows["labels/trajectories"][0, -1] == 64
        assert np.all(rows["refit/passes"][0] >= 1)
    if source in ("ct", "rlsf"):
        # A sum of steps cannot say that three are nothing and four are too much: noisy-or stays well below.
        assert late["episode/cost"] > 1.0, late
    assert np.exp(said.log_probability[-1, 0]) > 0.5 > np.exp(said.log_probability[-1, 1])
