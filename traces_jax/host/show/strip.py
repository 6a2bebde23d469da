"""Curves below the video of an episode: credits, the resulting probability, and the true cost."""

import dataclasses
import functools
import pathlib

import chex
import numpy as np

from traces_jax.host.show import palette
from traces_jax.host.show.curves import short

HEIGHT = 208
# Pixels: around a panel, for the line of text above it, and of its letters.
_GAP, _HEAD, _LETTERS = 10, 20, 12
# Antialiasing: curves are drawn this many times larger and then averaged.
_FINE = 4
_LINE = 1.5

_BACKGROUND = np.asarray(palette.rgb(palette.DARK_PAPER), np.float32)
_INK = np.asarray(palette.rgb(palette.DARK_INK), np.float32)
_PANEL = np.asarray((27, 34, 43), np.float32)
_PALE = np.asarray((154, 164, 175), np.float32)
# Of white in a curve's colour: brighter than on paper.
_LIGHT = 0.3


@dataclasses.dataclass(frozen=True)
class Curve:
    """One panel.

    Attributes:
      name: written above it.
      texts: [T] the value at each step, written above it.
      values: [T], none below 0.
      top: the value at the panel's upper edge.
      mark: the value of a dashed line; None for no line.
      colour: of the palette.
    """

    name: str
    texts: list[str]
    values: np.ndarray
    top: float
    mark: float | None
    colour: str

    @property
    def light(self) -> np.ndarray:
        """Its colour on a dark background, [3]."""
        return np.asarray(palette.lighter(self.colour, _LIGHT), np.float32)


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
        """Prepares the curves of T steps.

        credit: [T] mean credit of each step; probability: [T] that all is acceptable so far; cost: [T] the true cost of
        each step; limit: of the summed cost.
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
            picture[rows, now] = _INK
            _write(picture, curve.texts[step], rows.start - _HEAD, columns.stop, _INK, right=True)
        return picture.astype(np.uint8)


def _curves(credit: np.ndarray, probability: np.ndarray, cost: np.ndarray, limit: float) -> list[Curve]:
    total = np.cumsum(cost, dtype=np.float64)
    return [
        Curve(
            "credit of the step",
            [f"{value:.3f}" for value in credit],
            credit,
            _above(credit.max()),
            None,
            palette.CREDIT,
        ),
        Curve(
            "estimated chance that all is acceptable so far",
            [f"{100 * value:.0f} %" for value in probability],
            probability,
            1.0,
            0.5,
            palette.PROBABILITY,
        ),
        Curve(
            "true cost so far (not seen by the learner)",
            [f"{short(value)} of {short(limit)}" for value in total],
            total,
            _above(max(total[-1], 1.2 * limit)),
            limit,
            palette.COST,
        ),
    ]


def _above(value: float) -> float:
    """The value of the upper edge; positive, so that a curve of zeros is drawn on the lower edge."""
    return float(value) or 1.0


def _panels(count: int, width: int, height: int) -> list[tuple[slice, slice]]:
    """Rows and columns of panels of equal height, one below the other, each with a line of text above it."""
    own = (height - _GAP) // count - _HEAD - _GAP // 2
    tops = [_GAP // 2 + _HEAD + place * (own + _HEAD + _GAP // 2) for place in range(count)]
    return [(slice(top, top + own), slice(_GAP, width - _GAP)) for top in tops]


def _draw_panel(picture: np.ndarray, panel: tuple[slice, slice], curve: Curve) -> None:
    """Draws the static parts: background, dashed line and name. picture: [H, W, 3], modified."""
    rows, columns = panel
    picture[panel] = _PANEL
    _write(picture, curve.name, rows.start - _HEAD, columns.start, curve.light)
    if curve.mark is None:
        return
    height = rows.stop - rows.start
    row = rows.stop - 1 - round(min(curve.mark / curve.top, 1.0) * (height - 1))
    for start in range(columns.start, columns.stop, 8):
        picture[row, start : min(start + 4, columns.stop)] = _PALE


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
    for mask, strength in ((row < low, 0.3), (line, 1.0)):
        share = strength * mask.reshape(height, _FINE, width, _FINE).mean(axis=(1, 3))[..., None]
        panel += share * (curve.light - panel)


def _write(picture: np.ndarray, text: str, top: int, side: int, colour: np.ndarray, *, right: bool = False) -> None:
    """Writes a line of text below the row `top`, from the column `side` or, if `right`, up to it. Modifies picture."""
    share = _letters(text)
    if right:
        share = share[:, -side:]
        side -= share.shape[1]
    place = picture[top : top + share.shape[0], side : side + share.shape[1]]
    place += share[: place.shape[0], : place.shape[1], None] * (colour - place)


@functools.lru_cache(maxsize=4096)
def _letters(text: str) -> np.ndarray:
    """How much of each pixel of a line of text is covered, from 0 to 1, [_HEAD, width]."""
    import matplotlib  # only for videos, and a font of its own
    from matplotlib import ft2font

    font = ft2font.FT2Font(str(pathlib.Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")))
    font.set_size(_LETTERS, 72)
    # A bar sets the line's height, so that all texts stand on the same line.
    font.set_text(f"|{text}")
    font.draw_glyphs_to_bitmap(antialiased=True)
    image = np.asarray(font.get_image(), np.float32) / 255
    font.set_text("|")
    font.draw_glyphs_to_bitmap(antialiased=True)
    image = image[:, np.asarray(font.get_image()).shape[1] + 1 :]
    line = np.zeros((_HEAD, image.shape[1]), np.float32)
    above = max((_HEAD - image.shape[0]) // 2, 0)
    line[above : above + image.shape[0]] = image[:_HEAD]
    return line
