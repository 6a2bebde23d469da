"""Cutting trajectories, labels, picking and keeping, by hand."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from traces_jax.feedback import labels, query, trajectories

# Two environments, six steps: the first has episodes of 3 and 2 steps and an unfinished one, the second one of 6.
ENDED = np.array([[0, 0], [0, 0], [1, 0], [0, 0], [1, 0], [0, 1]], bool)
LENGTH = np.array([[1, 1], [2, 2], [3, 3], [1, 4], [2, 5], [1, 6]], np.float32)
VALUES = np.arange(12.0).reshape(6, 2)


def rows_of(length, *, inputs=None, prefixes=2):
    length = jnp.asarray(length, jnp.int32)
    count = length.shape[0]
    if inputs is None:
        inputs = jnp.arange(count, dtype=jnp.float32)
    return trajectories.Trajectories(
        inputs=jnp.broadcast_to(jnp.asarray(inputs, jnp.float32)[:, None, None], (count, 3, 1)),
        length=length,
        labels=jnp.ones((count, prefixes)),
        mask=jnp.ones((count, prefixes), bool) & (length[:, None] > 0),
    )


def candidates(lengths):
    """The same in a pool: trajectory i comes from environment i."""
    places = jnp.arange(len(lengths))
    return trajectories.Candidates(rows_of(lengths), trajectories.Origin(0 * places, places, 0 * places), None)


def test_episodes_are_found_in_the_order_of_their_ends():
    cuts = trajectories.find(ENDED, LENGTH, 4)
    np.testing.assert_array_equal(cuts.length, [3, 2, 6, 0])
    np.testing.assert_array_equal(cuts.first[:3], [0, 3, 0])
    np.testing.assert_array_equal(cuts.environment[:3], [0, 0, 1])
    assert int(cuts.dropped) == 0
    taken = cuts.take(jnp.asarray(VALUES), 6)
    np.testing.assert_array_equal(taken[0], [0, 2, 4, 0, 0, 0])
    np.testing.assert_array_equal(taken[1], [6, 8, 0, 0, 0, 0])
    np.testing.assert_array_equal(taken[2], [1, 3, 5, 7, 9, 11])
    np.testing.assert_array_equal(taken[3], np.zeros(6))
    np.testing.assert_array_equal(cuts.last(jnp.asarray(VALUES))[:3], [4, 8, 11])


def test_episodes_without_a_place_are_counted():
    cuts = trajectories.find(ENDED, LENGTH, 2)
    np.testing.assert_array_equal(cuts.length, [3, 2])
    assert int(cuts.dropped) == 1


def test_prefixes_end_at_intervals_and_with_the_whole():
    np.testing.assert_array_equal(trajectories.prefix_ends(10, 4, terminal_only=False), [4, 8, 10])
    np.testing.assert_array_equal(trajectories.prefix_ends(8, 4, terminal_only=False), [4, 8])
    np.testing.assert_array_equal(trajectories.prefix_ends(10, 4, terminal_only=True), [10])


def test_a_short_trajectory_has_fewer_prefixes():
    """Its whole stands in the last place; a prefix that would be the whole is not counted twice."""
    ends = trajectories.prefix_ends(10, 4, terminal_only=False)
    np.testing.assert_array_equal(
        trajectories.prefix_mask(jnp.array([10, 6, 4, 3, 0]), ends),
        [[1, 1, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 0]],
    )
    cumulative = jnp.cumsum(jnp.ones((10, 3)), axis=0)
    np.testing.assert_array_equal(
        trajectories.at_prefixes(cumulative, jnp.array([10, 6, 3]), ends), [[4, 8, 10], [4, 6, 6], [3, 3, 3]]
    )


def test_a_label_holds_while_the_cost_is_within_the_limit():
    cost = jnp.array([[1.0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0]])
    ends = trajectories.prefix_ends(6, 2, terminal_only=False)
    judge = lambda **how: labels.oracle(  # noqa: E731
        cost, jnp.array([6, 4, 6]), jnp.array([0.0, 1.0, 0.0]), limit=2.0, ends=ends, **how
    )
    np.testing.assert_array_equal(judge(early_end_violates=False), [[1, 0, 0], [1, 1, 1], [1, 1, 1]])
    np.testing.assert_array_equal(judge(early_end_violates=True), [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


def test_accepted_by_hand():
    """At the limit is within it. An early end is a violation by itself only if it counts as one."""
    cost, terminated = jnp.array([0.0, 2.0, 2.1, 0.0, 2.1]), jnp.array([0.0, 0.0, 0.0, 1.0, 1.0])
    judge = lambda violates: labels.accepted(cost, terminated, limit=2.0, early_end_violates=violates)  # noqa: E731
    assert judge(True).tolist() == [True, True, False, False, False]
    assert judge(False).tolist() == [True, True, False, True, False]


def test_noise_turns_over_its_share_of_labels():
    given = (jax.random.uniform(jax.random.key(0), (200, 50)) < 0.3).astype(jnp.float32)
    noisy = labels.flip(given, jax.random.key(1), 0.1)
    changed = np.asarray(noisy != given)
    # 10 000 labels: three standard deviations are 0.009.
    assert changed.mean() == pytest.approx(0.1, abs=0.009)
    assert changed[given > 0].mean() == pytest.approx(changed[given == 0].mean(), abs=0.02)
    np.testing.assert_array_equal(labels.flip(given, jax.random.key(1), 0.0), given)


def test_the_oldest_go_first():
    ring = trajectories.empty(3, 3, 1, 2)
    ring = trajectories.push(ring, rows_of([3, 0, 3], inputs=[1, 2, 3]))
    np.testing.assert_array_equal(ring.rows.length, [3, 3, 0])
    np.testing.assert_array_equal(ring.rows.inputs[:, 0, 0], [1, 3, 0])
    ring = trajectories.push(ring, rows_of([3, 2], inputs=[4, 5]))
    np.testing.assert_array_equal(ring.rows.inputs[:, 0, 0], [5, 3, 4])
    np.testing.assert_array_equal(ring.rows.length, [2, 3, 3])
    assert int(ring.written) == 4
    pool = trajectories.push(trajectories.empty_pool(3, 3, 1, 2, None), candidates([3, 2]))
    np.testing.assert_array_equal(pool.rows.origin.environment, [0, 1, 0])
    emptied = trajectories.clear(pool)
    assert not np.any(emptied.rows.valid) and not np.any(emptied.rows.rows.mask) and int(emptied.written) == 0


def test_more_rows_than_places_leave_the_last_whole():
    """Written to one place twice, a row could keep its inputs and get the labels of another."""
    rows = rows_of([3, 3, 0, 3, 3, 3], inputs=[1, 2, 3, 4, 5, 6])
    rows = rows.replace(labels=jnp.arange(1.0, 7.0)[:, None] * jnp.ones((6, 2)))
    ring = trajectories.push(trajectories.empty(2, 3, 1, 2), rows_of([3], inputs=[9]))
    ring = trajectories.push(ring, rows)
    # Five were put in after one: the last two go to the places 4 % 2 and 5 % 2.
    np.testing.assert_array_equal(ring.rows.inputs[:, 0, 0], [5, 6])
    np.testing.assert_array_equal(ring.rows.labels, [[5, 5], [6, 6]])
    assert int(ring.written) == 6
    places = trajectories.ring_places(rows.valid, jnp.int32(1), 2)
    np.testing.assert_array_equal(places, [2, 2, 2, 2, 0, 1])


def test_the_best_are_picked():
    picked, chosen = query.pick(candidates([3, 3, 0, 3]), jnp.array([0.1, 0.5, 9.0, 0.3]), 3, jnp.asarray(10))
    np.testing.assert_array_equal(picked.rows.inputs[:, 0, 0], [1, 3, 0])
    np.testing.assert_array_equal(picked.valid, [True, True, True])
    np.testing.assert_array_equal(chosen, [1, 3, 0])
    np.testing.assert_array_equal(picked.origin.environment, [1, 3, 0])


@pytest.mark.parametrize(
    ("share", "parts"),
    [(0.11, [10]), (0.06, [20]), (0.07, [100]), (0.29, [100]), (0.5, [1]), (0.3, [1]), (0.013, [0, 3, 17]), (1.0, [7])],
)
def test_a_share_holds_however_it_is_cut(share, parts):
    """After every part, and in whole numbers: nothing is owed for more than half a pick."""
    count, taken = 0, 0
    for part in (parts * 500)[:500]:
        new = int(query.newly_due(share, jnp.int32(count), jnp.int32(count + part)))
        count += part
        taken += new
        assert 0 <= new <= math.ceil(fractions.Fraction(str(share)) * part)
        exact = fractions.Fraction(str(share)) * count
        assert taken == math.floor(exact + fractions.Fraction(1, 2))


@pytest.mark.parametrize("allowed", [-1, 0, 1, 2, 3, 7])
def test_no_more_are_picked_than_allowed(allowed):
    picked, _ = query.pick(candidates([3, 3, 3, 3]), jnp.array([0.1, 0.5, 9.0, 0.3]), 3, jnp.asarray(allowed))
    assert int(jnp.sum(picked.valid)) == min(max(allowed, 0), 3)
    assert int(jnp.sum(picked.rows.mask)) == 2 * min(max(allowed, 0), 3)


def test_what_is_ruled_out_is_not_picked():
    picked, _ = query.pick(candidates([3, 3, 3]), jnp.array([0.1, -jnp.inf, -jnp.inf]), 2, jnp.asarray(10))
    np.testing.assert_array_equal(picked.valid, [True, False])


@pytest.mark.parametrize(
    ("certain", "expected"), [(0, [3, 1, 4, 0]), (1, [4, 3, 1, 0]), (2, [4, 0, 3, 1]), (9, [4, 0, 3, 1])]
)
def test_the_most_uncertain_come_first_and_then_chance(certain, expected):
    """The third must not be taken, whatever its chance."""
    uncertainty = jnp.array([0.5, 0.1, -jnp.inf, 0.3, 0.9])
    chance = jnp.array([0.2, 0.7, 0.99, 0.8, 0.6])
    score = query.mixed(uncertainty, chance, certain)
    assert score[2] == -jnp.inf
    assert np.argsort(-np.asarray(score))[:4].tolist() == expected
