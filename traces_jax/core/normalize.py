"""Running mean and standard deviation, merged batch by batch (Chan's parallel form)."""

import flax.struct
import jax
import jax.numpy as jnp

MIN_STD = 0.01
CLIP = 5.0


@flax.struct.dataclass
class RunningStatistics:
    """count: [] samples seen; mean: [...]; squares: [...] summed squared deviations from the mean."""

    count: jax.Array
    mean: jax.Array
    squares: jax.Array


def init(shape: tuple[int, ...]) -> RunningStatistics:
    """Empty statistics. `apply` returns values unchanged until there are samples."""
    return RunningStatistics(count=jnp.zeros(()), mean=jnp.zeros(shape), squares=jnp.zeros(shape))


def update(statistics: RunningStatistics, batch: jax.Array) -> RunningStatistics:
    """Merges batch [..., *shape]. All leading axes are sample axes."""
    leading = tuple(range(batch.ndim - statistics.mean.ndim))
    count = float(batch.size // max(1, statistics.mean.size))
    mean = jnp.mean(batch, axis=leading)
    squares = jnp.sum(jnp.square(batch - mean), axis=leading)
    total = statistics.count + count
    delta = mean - statistics.mean
    return RunningStatistics(
        count=total,
        mean=statistics.mean + delta * (count / total),
        squares=statistics.squares + squares + jnp.square(delta) * (statistics.count * count / total),
    )


def std(statistics: RunningStatistics) -> jax.Array:
    """Sample standard deviation with a floor of MIN_STD; 1 with fewer than two samples."""
    variance = statistics.squares / jnp.maximum(statistics.count - 1.0, 1.0)
    return jnp.where(statistics.count > 1, jnp.maximum(jnp.sqrt(variance), MIN_STD), 1.0)


def apply(statistics: RunningStatistics, value: jax.Array) -> jax.Array:
    """(value - mean) / std, clipped to +-5; the value itself with fewer than two samples."""
    scaled = jnp.clip((value - statistics.mean) / std(statistics), -CLIP, CLIP)
    return jnp.where(statistics.count > 1, scaled, value)


def scale(statistics: RunningStatistics, value: jax.Array) -> jax.Array:
    """Divides by the std, clipped to 5 std around the mean; the value itself with fewer than two samples.

    For values that are summed over an episode. Subtracting the mean would add a constant to every step. Where episodes
    can end early, that constant would reward or punish long episodes.
    """
    return jnp.where(statistics.count > 1, apply(statistics, value) + statistics.mean / std(statistics), value)
