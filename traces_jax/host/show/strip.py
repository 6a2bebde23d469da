"""Curves below the video of an episode: credits, the resulting probability, and the true cost. Uses only NumPy."""

import dataclasses

import chex
import numpy as np

from traces_jax.host.show.curves import short

HEIGHT = 168
# Pixels: around a panel, for its name, for its current value.
_GAP, _LEFT, _RIGHT = 6, 76, 88
# Antialiasing: curves are drawn this many times larger and then averaged.
_FINE = 4
_LINE = 1.5

_BACKGROUND = np.asarray((24, 26, 32), np.float32)
_PANEL = np.asarray((38, 41, 50), np.float32)
_PALE = np.asarray((184, 188, 200), np.float32)
_LIGHT = np.asarray((236, 238, 244), np.float32)

# The font: rows of five dots, top first, one two-digit hexadecimal number each.
_GLYPHS = {
    " ": "00000000000000", "-": "0000001f000000", ".": "00000000000c0c",
    "0": "0e11131519110e", "1": "040c040404040e", "2": "0e11010204081f", "3": "1f02040201110e",
    "4": "02060a121f0202", "5": "1f101e0101110e", "6": "0608101e11110e", "7": "1f010204080808",
    "8": "0e11110e11110e", "9": "0e11110f01020c", "^": "040a1100000000", "c": "00000e1010110e",
    "d": "01010d1311110f", "e": "00000e111f100e", "i": "04000c0404040e", "l": "0c04040404040e",
    "m": "00001a15151111", "o": "00000e1111110e", "p": "00001e111e1010", "r": "00001619101010",
    "s": "00000e100e011e", "t": "08081c08080906",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Curve:
    """One panel.

    Attributes:
      name: written next to it.
      values: [T], none below 0.
      top: the value at the panel's upper edge.
      mark: the value of a dashed line, and the small text that explains it; None for no line.
      colour: [3].
    """

    name: str
    values: np.ndarray
    top: float
    mark: tuple[float, str] | None
    colour: tuple[int, int, int]


class Strip:
    """The curves of one episode; `draw` shows them up to a step."""

    def __init__(
        self,
        credit: np.ndarray,
        probability: np.ndarray,
        cost: np.ndarray,
        limit: float,
        *,
        width: int,
        height: int = HEIGHT,
    ):
        """credit, cost: [T] estimated and true cost of each step; limit: of the summed true cost.

        probability: [T] of being acceptable up to and including each step, as estimated.
        """
        chex.assert_rank([credit, probability, cost], 1)
        chex.assert_equal_shape([credit, probability, cost])
        self._curves = _curves(credit, probability, cost, limit)
        self._steps = credit.shape[0]
        self._panels = _panels(len(self._curves), width, height)
        self._empty = np.tile(_BACKGROUND, (height, width, 1))
        for curve, panel in zip(self._curves, self._panels, strict=True):
            _draw_panel(self._empty, panel, curve)
        self._full = self._empty.copy()
        for curve, panel in zip(self._curves, self._panels, strict=True):
            _draw_curve(self._full[panel], curve)

    def draw(self, step: int) -> np.ndarray:
        """The curves up to `step`, and their values there. Returns uint8 [height, width, 3]."""
        picture = self._empty.copy()
        for curve, (rows, columns) in zip(self._curves, self._panels, strict=True):
            width = columns.stop - columns.start
            now = columns.start + round(step / max(self._steps - 1, 1) * (width - 1))
            picture[rows, columns.start : now] = self._full[rows, columns.start : now]
            picture[rows, now] = _LIGHT
            middle = (rows.start + rows.stop) // 2
            _write(picture, short(curve.values[step]), middle - 7, columns.stop + _GAP, _LIGHT, size=2)
        return picture.astype(np.uint8)


def _curves(credit: np.ndarray, probability: np.ndarray, cost: np.ndarray, limit: float) -> list[Curve]:
    total = np.cumsum(cost, dtype=np.float64)
    return [
        Curve("credit", credit, _above(credit.max()), None, (255, 178, 62)),
        Curve("p^", probability, 1.0, (0.5, "0.5"), (92, 184, 255)),
        Curve("cost", total, _above(max(total[-1], 1.2 * limit)), (limit, f"limit {short(limit)}"), (255, 104, 96)),
    ]


def _above(value: float) -> float:
    """The value of the upper edge; positive, so that a curve of zeros is drawn on the lower edge."""
    return float(value) or 1.0


def _panels(count: int, width: int, height: int) -> list[tuple[slice, slice]]:
    """Rows and columns of panels of equal height, one below the other."""
    own = (height - _GAP * (count + 1)) // count
    tops = [_GAP + place * (own + _GAP) for place in range(count)]
    return [(slice(top, top + own), slice(_LEFT + _GAP, width - _RIGHT - _GAP)) for top in tops]


def _draw_panel(picture: np.ndarray, panel: tuple[slice, slice], curve: Curve) -> None:
    """Draws the static parts: background, dashed line, name and scale. picture: [H, W, 3], modified."""
    rows, columns = panel
    picture[panel] = _PANEL
    _write(picture, curve.name, rows.start + 2, _GAP, np.asarray(curve.colour, np.float32), size=2)
    if curve.mark is None:
        _write(picture, short(curve.top), rows.start, columns.start + 3, _PALE)
        return
    value, text = curve.mark
    height = rows.stop - rows.start
    row = rows.stop - 1 - round(min(value / curve.top, 1.0) * (height - 1))
    for start in range(columns.start, columns.stop, 8):
        picture[row, start : min(start + 4, columns.stop)] = _PALE
    _write(picture, text, rows.stop - 9, _GAP, _PALE)


def _draw_curve(panel: np.ndarray, curve: Curve) -> None:
    """Draws the full curve and the area under it. panel: [H, W, 3], modified."""
    height, width = panel.shape[:2]
    columns, rows = width * _FINE, height * _FINE
    # Every fine column covers the lowest to the highest of its values, so that no step is lost between columns.
    samples = -(-curve.values.size // columns) + 1
    times = np.linspace(0, curve.values.size - 1, columns * samples)
    value = np.interp(times, np.arange(curve.values.size), curve.values).reshape(columns, samples)
    level = np.clip(value / curve.top, 0.0, 1.0) * (rows - 1)
    level = np.concatenate([level, np.append(level[1:, :1], level[-1:, -1:], axis=0)], axis=1)
    low, high = level.min(axis=1), level.max(axis=1)
    row = np.arange(rows)[::-1, None]
    half = _LINE * _FINE / 2
    line = (row >= low - half) & (row <= high + half)
    colour = np.asarray(curve.colour, np.float32)
    for mask, strength in ((row < low, 0.3), (line, 1.0)):
        share = strength * mask.reshape(height, _FINE, width, _FINE).mean(axis=(1, 3))[..., None]
        panel += share * (colour - panel)


def _write(picture: np.ndarray, text: str, top: int, left: int, colour: np.ndarray, size: int = 1) -> None:
    """Writes text at (top, left), its upper left corner; letters have 5 x 7 dots of `size` pixels. Modifies picture."""
    for place, letter in enumerate(text):
        dots = np.unpackbits(np.frombuffer(bytes.fromhex(_GLYPHS[letter]), np.uint8)[:, None], axis=1)[:, 3:] > 0
        dots = dots.repeat(size, axis=0).repeat(size, axis=1)
        start = left + 6 * size * place
        picture[top : top + dots.shape[0], start : start + dots.shape[1]][dots] = colour
