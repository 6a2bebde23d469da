"""The trust-region step against dense matrices on a small network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config

from traces_jax.core import agent as agent_lib
from traces_jax.core import distributions
from traces_jax.core.networks import Critic, GaussianActor
from traces_jax.solvers import minibatches, trust_region

SAMPLES, OBSERVATIONS, ACTIONS = 40, 3, 2


def make_region(version="as_published", damping=0.1, min_std=0.0):
    """A policy of a few dozen parameters, on samples of its own."""
    config = make_config(
        task="ProbeBudget",
        method={"source": "oracle", "solver": "trpo", "solver_version": version},
        trust_region={"damping": damping},
    )
    modules = agent_lib.Modules(
        actor=GaussianActor(
            hidden=(5,), actions=ACTIONS, activation="tanh", mean="free", initial_log_std=-0.5, min_std=min_std
        ),
        critic=Critic(hidden=(4,), activation="tanh"),
    )
    agent = agent_lib.init(modules, jax.random.key(0), OBSERVATIONS, OBSERVATIONS)
    random = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)  # noqa: E731
    observation = draw(SAMPLES, OBSERVATIONS)
    mean, log_std = modules.policy(agent.actor.params, observation)
    action = mean + jnp.exp(log_std) * draw(SAMPLES, ACTIONS)
    samples = minibatches.Samples(
        observation=observation,
        context=observation,
        action=action,
        log_prob=distributions.log_prob(mean, log_std, action),
        advantage=draw(SAMPLES),
        reward_target=draw(SAMPLES),
        cost_target=draw(SAMPLES),
    )
    return config, trust_region.around(modules, agent, samples, config), samples.advantage


def dense(region):
    return np.asarray(jax.vmap(region.fisher)(jnp.eye(region.center.size)), float)


@pytest.mark.parametrize("min_std", [0.0, 0.3])
def test_the_fisher_product_is_the_second_derivative_of_the_kl(min_std):
    _, region, _ = make_region(damping=0.25, min_std=min_std)
    expected = np.asarray(jax.hessian(region.kl)(region.center)) + 0.25 * np.eye(region.center.size)
    np.testing.assert_allclose(dense(region), expected, rtol=1e-4, atol=1e-5)


def test_as_released_the_kl_is_a_mean_over_actions():
    (_, published, _), (_, released, _) = make_region(), make_region("as_released")
    other = published.center + 0.1
    np.testing.assert_allclose(released.kl(other), published.kl(other) / ACTIONS, rtol=1e-5)
    damped = 0.1 * np.eye(published.center.size)
    np.testing.assert_allclose(dense(released) - damped, (dense(published) - damped) / ACTIONS, rtol=1e-4, atol=1e-6)


def test_conjugate_gradients_solve_as_a_dense_solver_does():
    _, region, advantage = make_region()
    gradient = jax.grad(region.mean)(region.center, advantage)
    found = trust_region.solve(region.fisher, gradient, 30)
    expected = np.linalg.solve(dense(region), np.asarray(gradient, float))
    assert np.linalg.norm(np.asarray(found) - expected) <= 1e-4 * np.linalg.norm(expected)
    # Without a gradient there is nowhere to go.
    np.testing.assert_array_equal(trust_region.solve(region.fisher, jnp.zeros_like(gradient), 15), 0.0)


@pytest.mark.parametrize("target", [1e-4, 1e-2, 0.5])
def test_the_step_improves_within_the_target(target):
    config, region, advantage = make_region()
    settings = dataclasses.replace(config.trust_region, target_kl=target)
    params, row = jax.jit(lambda: trust_region.improve(region, advantage, settings))()
    assert 0 < float(region.kl(params)) <= target
    assert float(region.mean(params, advantage)) > float(region.mean(region.center, advantage))
    np.testing.assert_allclose(row["trust_region/kl"], region.kl(params), rtol=1e-2)
    if target <= 1e-2:
        # Near the center the KL is quadratic: its target is nearly used up.
        assert float(region.kl(params)) > 0.3 * target


def test_the_longest_step_by_hand():
    """Fisher diag(4, 1), direction (1, 2): 8 x^2 = 2 * 0.01."""
    fisher = lambda vector: jnp.asarray([4.0, 1.0]) * vector  # noqa: E731
    step = trust_region.longest(jnp.asarray([1.0, 2.0]), fisher, 0.01)
    np.testing.assert_allclose(step, np.sqrt(0.02 / 8) * np.asarray([1.0, 2.0]), rtol=1e-5)


@pytest.mark.parametrize(
    ("bound", "tries", "expected"), [(2.0, 5, 1.0), (0.7, 5, 0.64), (0.5, 5, 0.4096), (0.1, 3, 0.0)]
)
def test_the_line_search_takes_the_first_that_is_accepted(bound, tries, expected):
    center, step = jnp.asarray([1.0, 1.0]), jnp.asarray([1.0, 0.0])
    found, share = trust_region.search(center, step, lambda params: params[0] - 1.0 <= bound, tries=tries, shrink=0.8)
    np.testing.assert_allclose(share, expected, rtol=1e-6)
    np.testing.assert_allclose(found, [1.0 + expected, 1.0], rtol=1e-6)


def test_a_step_that_is_not_finite_is_not_taken():
    center = jnp.zeros(2)
    found, share = trust_region.search(
        center, jnp.asarray([jnp.nan, 1.0]), lambda params: params[0] <= 1.0, tries=4, shrink=0.8
    )
    np.testing.assert_array_equal(found, center)
    assert share == 0.0
