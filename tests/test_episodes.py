"""The window of finished episodes, against a deque, and the summary by hand."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_truth

from traces_jax.core import episodes


def _empty(size):
    return episodes.init(size, ("returns", "costs"))


@jax.jit
def _push(window, truth):
    return episodes.push(window, truth.ended, returns=truth.episode_return, costs=truth.episode_cost)


def test_order_of_ends_in_time():
    # Two environments; ends in the order of time, then of environment: 1, 2, 3, 4.
    truth = make_truth([[1, 1], [0, 1], [1, 0]], returns=[[1, 2], [9, 3], [4, 9]], costs=[[10, 20], [90, 30], [40, 90]])
    window = _push(_empty(6), truth)
    assert int(window.count) == 4
    np.testing.assert_array_equal(window.values["returns"][:4], [1, 2, 3, 4])
    np.testing.assert_array_equal(window.values["costs"][:4], [10, 20, 30, 40])
    # Unused slots do not count: the mean is over four, not six.
    assert episodes.means(window) == {"returns": 2.5, "costs": 25.0}


def test_the_oldest_is_overwritten_first():
    window = _empty(3)
    for cost in [1.0, 2.0, 3.0, 4.0]:
        window = _push(window, make_truth([[1]], costs=cost))
    assert int(window.count) == 4
    np.testing.assert_array_equal(np.sort(window.values["costs"]), [2, 3, 4])


def test_more_ends_than_slots_in_one_push():
    """Only the last ones are kept, each slot written once: writing one slot twice has no defined winner."""
    costs = np.arange(10.0).reshape(5, 2)
    window = _push(_push(_empty(4), make_truth([[1]], costs=100.0)), make_truth(np.ones((5, 2)), costs=costs))
    assert int(window.count) == 11
    np.testing.assert_array_equal(np.sort(window.values["costs"]), [6, 7, 8, 9])
    # And the next episode replaces the oldest of those.
    np.testing.assert_array_equal(np.sort(_push(window, make_truth([[1]], costs=50.0)).values["costs"]), [7, 8, 9, 50])


@pytest.mark.parametrize("size", [1, 4, 7])
def test_equals_a_deque(size):
    random = np.random.default_rng(size)
    window, expected, count = _empty(size), collections.deque(maxlen=size), 0
    for _ in range(30):
        ended = random.random((4, 3)) < random.choice([0.0, 0.1, 0.8])
        returns, costs = random.normal(size=(2, 4, 3)).astype(np.float32)
        window = _push(window, make_truth(ended, returns=returns, costs=costs))
        expected.extend(zip(returns[ended], costs[ended], strict=True))
        count += int(ended.sum())
        assert int(window.count) == count
        if expected:
            means = episodes.means(window)
            found = [means["returns"], means["costs"]]
            np.testing.assert_allclose(found, np.mean(expected, axis=0), rtol=1e-4, atol=1e-6)


def test_no_episode_means_not_a_number():
    """Zero would read as a perfect cost and move the multiplier."""
    window = _push(_empty(5), make_truth([[0, 0], [0, 0]], costs=3.0))
    assert int(window.count) == 0
    assert all(np.isnan(mean) for mean in episodes.means(window).values())


@pytest.mark.parametrize("names", [["returns"], ["returns", "costs", "lengths"]])
def test_all_numbers_of_an_episode_are_pushed_and_no_others(names):
    with pytest.raises(AssertionError, match="costs"):
        episodes.push(_empty(3), np.ones((1, 1), bool), **{name: np.ones((1, 1)) for name in names})


def test_summary_by_hand():
    # Ended: (return 2, cost 5, length 10), (4, 6, 20), (12, 0, 60). Steps that did not end carry decoys.
    truth = make_truth(
        [[1, 0], [1, 1]],
        returns=[[2, 99], [4, 12]],
        costs=[[5, 0], [6, 0]],
        lengths=[[10, 99], [20, 60]],
        broken=[[0, 0], [1, 0]],
    )
    accepted = jnp.asarray([[True, False], [False, True]])
    summary = {name: float(value) for name, value in episodes.summary(truth, accepted, jnp.zeros(2, bool)).items()}
    assert {name: value for name, value in summary.items() if not name.startswith("deployed/")} == {
        "episode/return": 6.0,
        "episode/cost": pytest.approx(11 / 3),
        "episode/length": 30.0,
        # One of three is not accepted, and the unfinished episode is not asked.
        "episode/accepted": pytest.approx(2 / 3),
        "episode/count": 3.0,
        "environment/broken": 1.0,
    }


def test_summary_without_episodes():
    summary = episodes.summary(make_truth([[0], [0]]), jnp.ones((2, 1), bool), jnp.zeros(1, bool))
    assert float(summary["episode/count"]) == 0.0
    assert all(np.isnan(summary[f"episode/{name}"]) for name in ("return", "cost", "length", "accepted"))
