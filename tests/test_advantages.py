"""Generalised advantage estimation: numbers on paper, a naive double loop, and Brax."""

import jax.numpy as jnp
import numpy as np
import pytest
from brax.training.agents.ppo.losses import compute_gae
from hypothesis import given, settings
from hypothesis import strategies as st

from traces_jax.solvers import advantages

# Halves and quarters, so that every number below is exact.
GAMMA, DECAY = 0.5, 0.5
REWARD = [1.0, 2.0, 4.0]
VALUE = [2.0, 1.0, 3.0]
NEXT_VALUE = [8.0, 6.0, 10.0]  # unlike VALUE[1:], so that reading the wrong one shows


def column(numbers):
    """[T] -> [T, 1]."""
    return jnp.asarray(numbers, jnp.float32)[:, None]


def estimate(terminated, truncated):
    advantage, target = advantages.gae(
        column(REWARD), column(VALUE), column(NEXT_VALUE), column(terminated), column(truncated),
        gamma=GAMMA, decay=DECAY,
    )  # fmt: skip
    return np.asarray(advantage)[:, 0], np.asarray(target)[:, 0]


# Deltas with bootstrap: 1 + 4 - 2 = 3, 2 + 3 - 1 = 4, 4 + 5 - 3 = 6; gamma * decay = 1/4.
@pytest.mark.parametrize(
    "terminated, truncated, expected",
    [
        # The last step is cut by the end of the rollout alone: it bootstraps, and everything carries.
        ([0, 0, 0], [0, 0, 0], [3 + 5.5 / 4, 4 + 6 / 4, 6]),
        # Termination in the middle: no bootstrap (2 - 1 = 1) and no carry from the third step.
        ([0, 1, 0], [0, 0, 0], [3 + 1 / 4, 1, 6]),
        # Truncation in the middle: it bootstraps with its own next value, but nothing carries.
        ([0, 0, 0], [0, 1, 0], [3 + 4 / 4, 4, 6]),
        # Termination at the last step: 4 - 3 = 1.
        ([0, 0, 1], [0, 0, 0], [3 + (4 + 1 / 4) / 4, 4 + 1 / 4, 1]),
        # Truncation at the last step changes nothing: the rollout was cut there anyway.
        ([0, 0, 0], [0, 0, 1], [3 + 5.5 / 4, 4 + 6 / 4, 6]),
    ],
)
def test_by_hand(terminated, truncated, expected):
    advantage, target = estimate(terminated, truncated)
    np.testing.assert_array_equal(advantage, expected)
    np.testing.assert_array_equal(target, np.asarray(expected) + VALUE)


def naive(reward, value, next_value, terminated, truncated, gamma, decay):
    """The definition: for every step, the discounted sum of deltas up to the end of its episode."""
    advantage = np.zeros_like(reward)
    steps, environments = reward.shape
    for b in range(environments):
        for t in range(steps):
            weight = 1.0
            for later in range(t, steps):
                bootstrap = 0.0 if terminated[later, b] else gamma * next_value[later, b]
                advantage[t, b] += weight * (reward[later, b] + bootstrap - value[later, b])
                weight *= gamma * decay
                if terminated[later, b] or truncated[later, b]:
                    break
    return advantage


@given(seed=st.integers(0, 2**32 - 1), gamma=st.floats(0, 1), decay=st.floats(0, 1), often=st.floats(0, 0.6))
@settings(max_examples=40, deadline=None)
def test_equals_the_definition(seed, gamma, decay, often):
    random = np.random.default_rng(seed)
    shape = (12, 3)  # one shape, so that one compilation serves all examples
    reward, value, next_value = random.normal(size=(3, *shape))
    terminated = random.random(shape) < often
    truncated = (random.random(shape) < often) & ~terminated
    inputs = [jnp.asarray(x, jnp.float32) for x in (reward, value, next_value, terminated, truncated)]
    advantage, target = advantages.gae(*inputs, gamma=gamma, decay=decay)
    expected = naive(reward, value, next_value, terminated, truncated, gamma, decay)
    np.testing.assert_allclose(advantage, expected, atol=1e-4)
    np.testing.assert_allclose(target, expected + value, atol=1e-4)


@pytest.mark.parametrize("decay", [0.95, 1.0])
def test_agrees_with_brax_on_terminations(decay):
    """Brax drops truncated steps where we bootstrap them, so the oracle holds for terminations alone.

    Its advantages use lambda-targets instead of values, which is the same only for lambda = 1; its targets are ours.
    """
    random = np.random.default_rng(0)
    steps, environments, gamma = 30, 4, 0.97
    reward = jnp.asarray(random.normal(size=(steps, environments)), jnp.float32)
    values = jnp.asarray(random.normal(size=(steps + 1, environments)), jnp.float32)
    terminated = jnp.asarray(random.random((steps, environments)) < 0.2, jnp.float32)
    truncated = jnp.zeros_like(terminated)
    advantage, target = advantages.gae(reward, values[:-1], values[1:], terminated, truncated, gamma=gamma, decay=decay)
    brax_target, brax_advantage = compute_gae(
        truncated, terminated, reward, values[:-1], values[-1], lambda_=decay, discount=gamma
    )
    np.testing.assert_allclose(target, brax_target, rtol=1e-5, atol=1e-5)
    if decay == 1.0:
        np.testing.assert_allclose(advantage, brax_advantage, rtol=1e-5, atol=1e-5)


def test_shapes_that_do_not_match_are_refused():
    """[T] against [T, B] would broadcast silently."""
    ones = jnp.ones((3, 2))
    with pytest.raises(AssertionError):
        advantages.gae(ones, ones, jnp.ones((3, 1)), ones, ones, gamma=0.9, decay=0.9)


def test_standardize_divides_by_the_population_deviation():
    # Mean 2, squared deviations 4, 4, 4, 4: population std 2 (the sample std would be 2.31).
    np.testing.assert_allclose(
        advantages.standardize(jnp.asarray([[0.0, 4.0], [4.0, 0.0]])), [[-1, 1], [1, -1]], rtol=1e-6
    )


def test_standardize_of_equal_advantages_is_zero():
    """A batch without information must not become a batch of NaN."""
    np.testing.assert_array_equal(advantages.standardize(jnp.full((4, 2), 3.0)), np.zeros((4, 2)))


def test_center_keeps_the_scale():
    # Mean 4; differences between samples stay what they were.
    np.testing.assert_array_equal(advantages.center(jnp.asarray([[0.0, 2.0], [4.0, 10.0]])), [[-4, -2], [0, 6]])
