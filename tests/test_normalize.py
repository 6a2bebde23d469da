"""Running statistics against numpy on everything seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from traces_jax.core import normalize

_update = jax.jit(normalize.update)


@pytest.mark.parametrize("shape", [(), (3,)], ids=["scalar", "vector"])
def test_merged_batches_equal_numpy_on_everything(shape):
    random = np.random.default_rng(0)
    # Batches of unlike sizes, leading axes, means and scales: a merge that averages averages would show.
    batches = [
        random.normal(loc=place, scale=scale, size=(*leading, *shape)).astype(np.float32)
        for place, scale, leading in [(3.0, 2.0, (7, 2)), (-5.0, 0.5, (40,)), (0.0, 9.0, (1,)), (1.0, 1.0, (3, 3, 2))]
    ]
    statistics = normalize.init(shape)
    for batch in batches:
        statistics = _update(statistics, batch)
    everything = np.concatenate([batch.reshape(-1, *shape) for batch in batches])
    assert float(statistics.count) == len(everything) == 73
    assert statistics.mean.shape == shape
    np.testing.assert_allclose(statistics.mean, everything.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(normalize.std(statistics), everything.std(axis=0, ddof=1), rtol=1e-5)


def test_apply_by_hand():
    # Samples 0 and 4: mean 2, sample variance (4 + 4) / 1 = 8.
    statistics = normalize.update(normalize.init(()), jnp.asarray([0.0, 4.0]))
    np.testing.assert_allclose(normalize.apply(statistics, jnp.asarray(5.0)), 3 / np.sqrt(8), rtol=1e-6)


def test_scale_by_hand():
    """As above, but the mean stays: zero is zero, and the sum of two is the sum of both."""
    statistics = normalize.update(normalize.init(()), jnp.asarray([0.0, 4.0]))
    found = normalize.scale(statistics, jnp.asarray([5.0, 0.0, -1.0]))
    np.testing.assert_allclose(found, [5 / np.sqrt(8), 0.0, -1 / np.sqrt(8)], rtol=1e-6, atol=1e-7)
    # Five deviations on either side of the mean are the bounds.
    np.testing.assert_allclose(
        normalize.scale(statistics, jnp.asarray([1e6, -1e6])), [2 / np.sqrt(8) + 5, 2 / np.sqrt(8) - 5], rtol=1e-6
    )
    assert normalize.scale(normalize.init(()), jnp.asarray(100.0)) == 100.0


def test_result_is_clipped_at_five():
    statistics = normalize.update(normalize.init(()), jnp.asarray([-1.0, 1.0]))
    np.testing.assert_array_equal(normalize.apply(statistics, jnp.asarray([1e6, -1e6])), [5.0, -5.0])
    # 5 deviations are 5 * sqrt(2) = 7.07; just inside is not clipped.
    np.testing.assert_allclose(normalize.apply(statistics, jnp.asarray(7.0)), 7 / np.sqrt(2), rtol=1e-6)


def test_deviation_has_a_floor():
    """A dimension that never moves would otherwise divide by zero."""
    statistics = normalize.update(normalize.init((2,)), jnp.asarray([[3.0, 0.0], [3.0, 2.0]]))
    np.testing.assert_allclose(normalize.std(statistics), [0.01, np.sqrt(2)], rtol=1e-6)
    np.testing.assert_allclose(normalize.apply(statistics, jnp.asarray([3.02, 1.0])), [2.0, 0.0], rtol=1e-4)


def test_values_pass_through_until_there_is_a_deviation():
    """Neither scaled nor clipped: nothing is known of the scale, with no sample or with one."""
    raw = jnp.asarray([100.0, -7.0])
    nothing = normalize.init((2,))
    np.testing.assert_array_equal(normalize.apply(nothing, raw), raw)
    one = normalize.update(nothing, jnp.asarray([[1.0, 2.0]]))
    np.testing.assert_array_equal(normalize.apply(one, raw), raw)


@pytest.mark.parametrize("pieces", [1, 50])
def test_a_large_offset_stays_accurate(pieces):
    """E[x^2] - E[x]^2 in float32 would lose the deviation altogether: 1000^2 swallows it."""
    data = np.random.default_rng(0).normal(1000.0, 1.0, size=100_000).astype(np.float32)
    statistics = normalize.init(())
    for piece in np.split(data, pieces):
        statistics = _update(statistics, piece)
    exact = data.astype(np.float64)
    np.testing.assert_allclose(float(statistics.mean), exact.mean(), atol=5e-3)
    np.testing.assert_allclose(float(normalize.std(statistics)), exact.std(ddof=1), rtol=1e-3)
