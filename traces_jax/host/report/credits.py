"""Metrics of an estimator's credits: pure functions of the arrays in diagnostics.npz."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

WINDOW = 5
# Centers of the windows, in steps from the first crossing of the limit.
OFFSETS = np.arange(-50, 51, WINDOW)


@dataclasses.dataclass(frozen=True)
class Example:
    """One episode of L steps.

    Attributes:
      cost: [L] cumulative true cost.
      credit: [L] credit of each step.
      crossing: the first step at which the cumulative cost is above the limit, or None.
    """

    cost: np.ndarray
    credit: np.ndarray
    crossing: int | None


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """Data for the plots of N episodes, K of which cross the limit.

    Attributes:
      total: [N] true cost of the episode.
      probability: [N] estimated probability that it is acceptable.
      accepted: [N] the label, 1 or 0.
      where_none: [N] mean credit of steps without true cost / mean credit of all steps; NaN if undefined.
      windows: [K, W] mean credit in windows around the crossing / mean credit of the episode; NaN outside of it.
      examples: a few example episodes.
      limit: the hidden threshold.
    """

    total: np.ndarray
    probability: np.ndarray
    accepted: np.ndarray
    where_none: np.ndarray
    windows: np.ndarray
    examples: list[Example]
    limit: float


def diagnose(
    cost: np.ndarray, credit: np.ndarray, probability: np.ndarray, accepted: np.ndarray, limit: float
) -> Diagnosis:
    """cost, credit: [N, T], NaN after an episode's end. probability, accepted: [N]."""
    total = np.nansum(cost, axis=1)
    return Diagnosis(
        total=total,
        probability=probability,
        accepted=accepted,
        where_none=ratio_where_none(cost, credit),
        windows=window_ratios(cost, credit, limit),
        examples=[_example(cost[row], credit[row], limit) for row in chosen(total, accepted)],
        limit=limit,
    )


def pool(parts: Sequence[Diagnosis]) -> Diagnosis:
    """All episodes of several seeds; the examples are from the first seed."""
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("total", "probability", "accepted", "where_none", "windows")
    }
    return Diagnosis(**joined, examples=parts[0].examples, limit=parts[0].limit)


def first_crossing(cost: np.ndarray, limit: float) -> np.ndarray:
    """cost: [N, T]. The first step [N] at which the cumulative cost is above the limit; -1 where it never is."""
    above = np.nancumsum(cost, axis=1) > limit
    return np.where(above.any(axis=1), above.argmax(axis=1), -1)


def ratio_where_none(cost: np.ndarray, credit: np.ndarray) -> np.ndarray:
    """cost, credit: [N, T]. E[credit | cost = 0] / E[credit], [N]; NaN without such steps or without credit."""
    return _ratio(_mean_where(credit, cost == 0), _mean_where(credit, np.isfinite(credit)))


def window_ratios(cost: np.ndarray, credit: np.ndarray, limit: float) -> np.ndarray:
    """cost, credit: [N, T]. For each of the K episodes that cross: mean credit near the crossing / mean, [K, W]."""
    crossing = first_crossing(cost, limit)
    rows = np.flatnonzero(crossing >= 0)
    steps = crossing[rows, None, None] + OFFSETS[:, None] + np.arange(WINDOW) - WINDOW // 2
    # Windows that extend past an end of the episode would be means of fewer steps.
    inside = ((steps >= 0) & (steps < credit.shape[1])).all(axis=2)
    near = credit[rows[:, None, None], np.clip(steps, 0, credit.shape[1] - 1)].mean(axis=2)
    mean = _mean_where(credit[rows], np.isfinite(credit[rows]))
    return np.where(inside, _ratio(near, mean[:, None]), np.nan)


def chosen(total: np.ndarray, accepted: np.ndarray) -> list[int]:
    """Up to three episodes: the accepted one of highest cost, the rejected ones of lowest and of median cost.

    total, accepted: [N].
    """
    order = np.argsort(total, kind="stable")
    good, bad = order[accepted[order] > 0], order[accepted[order] == 0]
    picked = [*good[-1:], *bad[:1], *bad[len(bad) // 2 :][:1]]
    return list(dict.fromkeys(int(row) for row in picked))


def _example(cost: np.ndarray, credit: np.ndarray, limit: float) -> Example:
    length = int(np.isfinite(cost).sum())
    crossing = int(first_crossing(cost[None], limit)[0])
    return Example(np.cumsum(cost[:length]), credit[:length], crossing if crossing >= 0 else None)


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Episodes binned by estimated probability; B non-empty bins.

    Attributes:
      predicted: [B] mean estimated probability.
      accepted: [B] acceptance rate of the labeler.
      count: [B] episodes.
      error: expected calibration error, the mean distance between both.
    """

    predicted: np.ndarray
    accepted: np.ndarray
    count: np.ndarray
    error: float


def reliability(probability: np.ndarray, accepted: np.ndarray, bins: int = 10) -> Reliability:
    """probability, accepted: [N]."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    full = count > 0
    predicted = np.bincount(place, probability, minlength=bins)[full] / count[full]
    share = np.bincount(place, accepted, minlength=bins)[full] / count[full]
    error = float(np.sum(count[full] * np.abs(predicted - share)) / count.sum())
    return Reliability(predicted, share, count[full], error)


def cost_bins(total: np.ndarray, limit: float, bins: int = 14) -> np.ndarray:
    """total: [N]. Edges of about `bins` bins of equal width that cover all totals; the limit is one of the edges.

    Bins are open below and closed above, as a total at the limit is acceptable.
    """
    low, high = min(float(total.min()), limit), max(float(total.max()), limit)
    width = max((high - low) / bins, 1.0)
    # One more than necessary: otherwise a total on the lowest edge, or rounded past the highest, would be in no bin.
    below, above = (math.floor(distance / width) + 1 for distance in (limit - low, high - limit))
    return limit + width * np.arange(-below, above + 1)


def _mean_where(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """values, where: [N, T]. Mean [N] over the chosen steps; NaN without any."""
    return _ratio(np.sum(values, axis=1, where=where), where.sum(axis=1))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN instead of a division by zero."""
    above, below = np.broadcast_arrays(above, below)
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below != 0)
