"""Text plots: mean and standard deviation over lanes, in Braille characters."""

from collections.abc import Sequence

import chex
import numpy as np

SPREAD, MARK = "░", "╌"
# A Braille character has two columns of four dots; these are their bits, from the top.
_BRAILLE = 0x2800
_BITS = np.asarray([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_ROWS, _COLUMNS = _BITS.shape
# Width of the scale next to a curve: that of the longest number, so that curves below each other are aligned.
_SCALE = 7


def plot(
    values: np.ndarray,
    *,
    width: int,
    height: int,
    marks: Sequence[float] = (),
    bounds: tuple[float, float] | None = None,
) -> list[str]:
    """Draws the mean over lanes as a line, with a band of one standard deviation, clipped to the range of the data.

    Args:
      values: [S, I]; non-finite values are ignored.
      width: characters in a line, including the scale on the left.
      height: lines.
      marks: values with a dashed line.
      bounds: values at the lower and upper edge; by default the range of the data.

    Returns:
      The lines, `height` of them, each `width` characters long.
    """
    chex.assert_rank(values, 2)
    inner = max(width - _SCALE - 1, 1)
    mean, low_edge, high_edge = band(values)
    lower, upper = _resample(low_edge, inner), _resample(high_edge, inner)
    line = _resample(mean, inner * _COLUMNS)
    low, high = bounds or _bounds(np.concatenate([lower, upper, line, np.asarray(marks, float)]))
    place = lambda value: np.clip((value - low) / (high - low), 0.0, 1.0)  # noqa: E731
    cells = np.full((height, inner), " ")
    bottom, top = np.arange(height)[::-1, None] / height, np.arange(height, 0, -1)[:, None] / height
    cells[(place(upper) >= bottom) & (place(lower) <= top) & (upper > lower)] = SPREAD
    for mark in marks:
        cells[height - 1 - min(int(place(mark) * height), height - 1)] = MARK
    dots = _dots(place(line), height * _ROWS)
    letters = np.einsum("hrwc,rc->hw", dots.reshape(height, _ROWS, inner, _COLUMNS), _BITS)
    cells = np.where(letters > 0, np.vectorize(chr)(_BRAILLE + letters), cells)
    labels = [short(high), *[""] * (height - 2), short(low)][:height]
    return [f"{label:>{_SCALE}}│" + "".join(row) for label, row in zip(labels, cells, strict=True)]


def axis(first: str, name: str, last: str, *, width: int) -> str:
    """The x axis below a curve of `width` characters: first and last value, and its name between them."""
    inner = max(width - _SCALE - 1, 1)
    middle = f" {name} " if len(first) + len(name) + len(last) + 6 <= inner else ""
    return f"{first} {middle.center(inner - len(first) - len(last) - 2, '─')} {last}"


def mean_and_deviation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over lanes, [S, I] -> [I]; NaN where no lane has a value."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    divide = lambda total: np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)  # noqa: E731
    mean = divide(np.where(known, values, 0.0).sum(axis=0))
    square = np.square(np.where(known, values - mean, 0.0))
    return mean, np.sqrt(divide(square.sum(axis=0)))


def band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over lanes, and one standard deviation below and above, within what was measured; [S, I] -> [I] each."""
    mean, deviation = mean_and_deviation(values)
    known = np.isfinite(values)
    low = np.fmax(mean - deviation, np.where(known, values, np.inf).min(axis=0))
    high = np.fmin(mean + deviation, np.where(known, values, -np.inf).max(axis=0))
    return mean, low, high


def short(value: float) -> str:
    """A number in at most seven characters; 0 if it is tiny, a dash if it is NaN."""
    if not np.isfinite(value):
        return "-"
    size = abs(value)
    if size < 1e-9:
        return "0"
    if size >= 1e5 or size < 0.01:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if size >= 1000 else f"{value:.4g}" if size >= 100 else f"{value:.3g}"


def _bounds(values: np.ndarray) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    if not known.size:
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    # A constant curve is drawn in the middle.
    slack = 0.0 if high > low else abs(high) / 2 or 0.5
    return low - slack, high + slack


def _resample(values: np.ndarray, count: int) -> np.ndarray:
    """Values [I] resampled to `count` points from the first iteration to the last; gaps are interpolated.

    If there are more iterations than points, each point is the mean of its iterations.
    """
    own = np.arange(values.size) * min(values.size, count) // max(values.size, 1)
    known = np.isfinite(values)
    held, first = np.unique(own[known], return_index=True)
    if not held.size:
        return np.full(count, np.nan)
    means = np.add.reduceat(values[known], first) / np.diff(np.append(first, known.sum()))
    places = np.linspace(0, max(min(values.size, count) - 1, 1), count)
    # A single value gets its own point, even if it lies between two.
    near = np.ptp(places) / count
    inside = (places >= held[0] - near) & (places <= held[-1] + near)
    return np.where(inside, np.interp(places, held, means), np.nan)


def _dots(place: np.ndarray, rows: int) -> np.ndarray:
    """Dots [rows, columns] of a line at heights place [columns] in [0, 1], connected vertically; none where NaN."""
    at = np.round(place * (rows - 1))
    after = np.append(at[1:], np.nan)
    # Up to the dot before the next column's.
    reach = np.where(np.isfinite(after), after - np.sign(after - at), at)
    row = np.arange(rows)[::-1, None]
    return (row >= np.fmin(at, reach)) & (row <= np.fmax(at, reach)) & np.isfinite(at)
