"""Statistics over seeds: mean and standard deviation, interquartile mean, bootstrap, probability of improvement."""

import dataclasses
from collections.abc import Callable

import numpy as np

RESAMPLES = 2000
_INTERVAL = (2.5, 97.5)
# The same runs give the same report.
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and population standard deviation."""

    mean: float
    std: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; low and high are NaN if there is only one seed."""

    value: float
    low: float
    high: float


def spread(values: np.ndarray) -> Spread | None:
    """values: [N]. None if empty."""
    return Spread(float(values.mean()), float(values.std())) if values.size else None


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """values: [..., N]. Mean [...] of the middle half: a quarter of N, rounded down, is left out at each end."""
    count = values.shape[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Share [...] of pairs in which ours is larger; a tie counts half. ours: [..., N], theirs: [..., M]."""
    first, second = ours[..., :, None], theirs[..., None, :]
    return np.mean((first > second) + 0.5 * (first == second), axis=(-2, -1))


def estimate(statistic: Callable[..., np.ndarray], *samples: np.ndarray) -> Estimate:
    """The statistic of samples [N], [M], ... with its percentile bootstrap interval, resampling seeds."""
    value = float(statistic(*samples))
    if min(sample.size for sample in samples) < 2:
        return Estimate(value, np.nan, np.nan)
    generator = np.random.default_rng(_SEED)
    drawn = [sample[generator.integers(sample.size, size=(RESAMPLES, sample.size))] for sample in samples]
    low, high = np.percentile(statistic(*drawn), _INTERVAL)
    return Estimate(value, float(low), float(high))
