"""The multiplier: Adam written out in numpy, and the cases where it must stand still."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config, train

from traces_jax.solvers import multipliers

LIMIT, RATE, INITIAL = 25.0, 0.035, 1e-3


def trace(measures, limit=LIMIT, lr=RATE, initial=INITIAL, maximum=1e9):
    state = multipliers.init(initial)
    found = []
    for measure in measures:
        state = multipliers.update(state, jnp.float32(measure), limit, True, lr=lr, maximum=maximum)
        found.append(float(state.multiplier))
    return found


def adam(measures):
    """Ascent on multiplier * (measure - limit) with Adam's published constants, projected to >= 0."""
    multiplier, first, second, result = INITIAL, 0.0, 0.0, []
    for step, measure in enumerate(measures, start=1):
        gradient = -(measure - LIMIT)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        direction = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        multiplier = max(multiplier - RATE * direction, 0.0)
        result.append(multiplier)
    return result


def test_trace_equals_adam_in_numpy():
    """Up, down through the clamp at zero, and up again: the moments go on under the clamp."""
    measures = [40.0, 26.0, 0.0, 0.0, 0.0, 0.0, 10.0, 60.0, 80.0, 90.0, 26.0, 25.0]
    expected = adam(measures)
    assert 0.0 in expected and expected[0] > 0.0 and expected[-1] > 0.0, "the clamp must be met and left"
    np.testing.assert_allclose(trace(measures), expected, rtol=1e-4, atol=1e-6)


def test_first_step_is_the_rate_whatever_the_violation():
    np.testing.assert_allclose(trace([25.1]), [INITIAL + RATE], rtol=1e-4)
    np.testing.assert_allclose(trace([1e4]), [INITIAL + RATE], rtol=1e-4)


def test_never_negative():
    assert trace([0.0] * 5) == [0.0] * 5


def test_never_above_its_maximum():
    assert trace([1e4] * 5, maximum=0.1)[-3:] == [np.float32(0.1)] * 3


@pytest.mark.parametrize("measure", [np.nan, np.inf, -np.inf])
def test_an_unknown_measure_changes_nothing(measure):
    """Neither the multiplier nor Adam's moments and step count: the next known measure acts as if nothing had been."""
    state = multipliers.update(multipliers.init(INITIAL), jnp.float32(30.0), LIMIT, True, lr=RATE, maximum=1e9)
    same = multipliers.update(state, jnp.float32(measure), LIMIT, True, lr=RATE, maximum=1e9)
    assert jax.tree.structure(same) == jax.tree.structure(state)
    for now, before in zip(jax.tree.leaves(same), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(now, before)
    assert trace([30.0, measure, 40.0])[-1] == trace([30.0, 40.0])[-1]


def test_an_old_measure_counts_once():
    """Episodes of ten steps in rollouts of five: one ends in every second iteration, and only then there is news."""
    _, state, rows = train(
        make_config(
            task="ProbeBudget", physics="native", steps=40,
            environment={"count": 1, "steps": 5, "reset_each_iteration": False}, constraint={"cost_limit": 0.5},
            lagrange={"initial": 1.0, "lr": RATE}, ppo={"minibatch": 5, "passes": 1},
            policy={"hidden": (4,)}, critic={"hidden": (4,)},
        )
    )  # fmt: skip
    assert rows["episode/count"][0].tolist() == [0, 1] * 4
    moved = np.diff(rows["constraint/multiplier"][0], prepend=np.float32(1.0))
    assert np.all(moved[::2] == 0) and np.all(moved[1::2] > 0)
    assert int(state.solver.multiplier.optimizer.count[0]) == 4, "moments of Adam stand still as well"


@pytest.mark.parametrize(
    ("measure", "limit", "expected"),
    [
        (30.0, 25.0, 0.5 + 2.0 * 0.2),
        (20.0, 25.0, 0.5 - 2.0 * 0.2),
        (10.0, 25.0, 0.0),  # never below zero
        (1e6, 25.0, 0.5 + 2.0),  # bounded
        (-0.45, -0.9, 0.5 + 2.0 * 0.5),  # a probability of 0.45 where 0.9 is wanted
        (3.0, 0.0, 0.5 + 2.0),
        (np.nan, 25.0, 0.5),
    ],
)
def test_the_multiplier_in_force_by_hand(measure, limit, expected):
    weight = multipliers.in_force(jnp.float32(0.5), jnp.float32(measure), limit, proportional=2.0)
    np.testing.assert_allclose(weight, expected, rtol=1e-6)
    assert multipliers.in_force(jnp.float32(0.5), jnp.float32(measure), limit, proportional=0.0) == 0.5


def test_the_proportional_part_damps():
    """A cost that falls while the multiplier is above 1 and rises below: alone, the learned one swings for ever."""

    def swing(proportional):
        def step(carry, _):
            state, cost = carry
            state = multipliers.update(state, cost, LIMIT, True, lr=RATE, maximum=1e9)
            weight = multipliers.in_force(state.multiplier, cost, LIMIT, proportional=proportional)
            cost = jnp.maximum(cost - 5.0 * (weight - 1.0), 0.0)
            return (state, cost), cost

        _, costs = jax.lax.scan(step, (multipliers.init(0.0), jnp.float32(30.0)), None, length=400)
        return np.ptp(costs[-50:])

    assert swing(0.0) > 10.0
    assert swing(1.0) < 0.1


def test_mix_by_hand():
    reward, cost = jnp.asarray([2.0, -1.0]), jnp.asarray([1.0, 4.0])
    np.testing.assert_array_equal(multipliers.mix(reward, cost, jnp.float32(0.0)), reward)
    # (2 - 3 * 1) / 4 and (-1 - 3 * 4) / 4.
    np.testing.assert_array_equal(multipliers.mix(reward, cost, jnp.float32(3.0)), [-0.25, -3.25])
    # A huge multiplier leaves the cost alone, at its own scale.
    np.testing.assert_allclose(multipliers.mix(reward, cost, jnp.float32(1e6)), -cost, rtol=1e-5)
