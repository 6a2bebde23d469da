"""The terminal view of a run: curves over iterations and the latest values of each lane."""

import dataclasses
import itertools
import math
import pathlib
import re
import textwrap
import time

import numpy as np
import rich.box
import rich.console
import rich.panel
import rich.table
import rich.text

from traces_jax import config as config_lib
from traces_jax import sources
from traces_jax.config import Config
from traces_jax.host.run import metrics, progress
from traces_jax.host.show import curves

# Minimum width of a curve, and its minimum and maximum height.
_NARROW, _LOW, _HIGH = 40, 3, 8
# Lines of the table besides lanes: header, mean, and a note on lanes that did not fit.
_TABLE_FRAME = 3
# Number of chunks over which the speed is averaged.
_RECENT = 10
# Padding of a table column.
_PADDING = 2


@dataclasses.dataclass(frozen=True)
class Figure:
    """A metric to show.

    Attributes:
      title: shown to the user.
      name: in the metrics rows.
      bounds: its lowest and highest possible value, if known.
    """

    title: str
    name: str
    bounds: tuple[float, float] | None = None


_COST = Figure("true cost", "episode/cost")
_FIGURES = (
    Figure("return", "episode/return"),
    _COST,
    Figure("accepted", "episode/accepted", (0.0, 1.0)),
    Figure("estimated", "estimate/probability", (0.0, 1.0)),
    Figure("multiplier", "constraint/multiplier"),
    Figure("labels", "labels/trajectories"),
)
_LEARNED = ("estimate/probability", "labels/trajectories")


class View:
    """Follows a run folder."""

    def __init__(self, folder: pathlib.Path, config: Config):
        self._config = config
        self._lanes = config_lib.lanes(config)
        learns = sources.learns(config)
        self._figures = [figure for figure in _FIGURES if learns or figure.name not in _LEARNED]
        self._limits = sorted({lane.config.constraint.cost_limit for lane in self._lanes})
        self._path = folder / "metrics.jsonl"
        names = [*(figure.name for figure in self._figures), "seconds"]
        self._rows = metrics.Follower(self._path, [lane.name for lane in self._lanes], config.iterations, names)
        self._count = 0

    def look(self) -> bool:
        """Reads new rows. Returns whether the run is complete."""
        self._rows.look()
        known = np.isfinite(self._rows.values["seconds"])
        before, self._count = self._count, int(known.sum())
        # A lane that became non-finite has no more rows. So the run also counts as complete if some lanes have reached
        # the last iteration and there are no new rows.
        return bool(known[:, -1].all() or (known[:, -1].any() and self._count == before))

    def frame(self, width: int, height: int | None = None) -> rich.console.Group:
        """The current view, fitted to width and height; without a height, all of it."""
        known = np.isfinite(self._rows.values["seconds"]).any(axis=0)
        done = int(np.flatnonzero(known)[-1]) + 1 if known.any() else 0
        # Lines break between parts, never within one: spaces within a part are temporarily non-breaking.
        whole = "  ".join(part.replace(" ", "\xa0") for part in self._head(done))
        lines = textwrap.wrap(whole, width, break_on_hyphens=False)
        head = rich.text.Text("\n".join(lines).replace("\xa0", " "), style="bold")
        if not done:
            return rich.console.Group(head, rich.text.Text("no iteration is finished yet; the first one compiles."))
        rows = math.ceil(len(self._figures) / max(width // _NARROW, 1))
        columns = math.ceil(len(self._figures) / rows)
        lanes, own = None, _HIGH
        if height is not None:
            left = height - len(lines) - _TABLE_FRAME
            # Curves have priority: two lines are reserved for lanes.
            own = max(_LOW, min(_HIGH, (left - min(len(self._lanes), 2)) // rows - 2))
            lanes = left - rows * (own + 2)
        drawn = self._curves(done, width // columns, own, columns)
        return rich.console.Group(head, drawn, *self._table(done, width, lanes))

    def _head(self, done: int) -> list[str]:
        """The parts of the header."""
        config = self._config
        parts = [
            f"{config.task} ({config.method.source})",
            f"iteration {done}/{config.iterations}",
            f"{done * config.iteration_steps:,} steps each",
        ]
        each = self._seconds_each(done)
        if each and done < config.iterations:
            rate = config.iteration_steps * len(self._lanes) / each
            parts += [f"{rate:,.0f} steps/s", f"{progress.clock(each * (config.iterations - done))} left"]
        if stopped := self._stopped(done):
            parts.append(f"{stopped} of {len(self._lanes)} lanes non-finite")
        if done == config.iterations:
            parts.append("complete")
        elif done:
            parts.append(f"last update {progress.clock(time.time() - self._path.stat().st_mtime)} ago")
        return parts

    def _stopped(self, done: int) -> int:
        """How many lanes have no more rows, because they became non-finite.

        Rows of all lanes are written together, so those of the newest iteration may be incomplete for a moment.
        """
        known = np.isfinite(self._rows.values["seconds"][:, max(done - 2, 0) : done])
        return int((~known.any(axis=1)).sum()) if done > 1 else 0

    def _seconds_each(self, done: int) -> float | None:
        """Seconds of an iteration, recently. None before there are two chunks."""
        seconds, _ = curves.mean_and_deviation(self._rows.values["seconds"][:, :done])
        known = np.flatnonzero(np.isfinite(seconds))
        # All iterations of a chunk have the time of its end. The first chunk includes compilation, so only its end time
        # is used.
        ends = np.append(known[:-1][np.diff(seconds[known]) != 0], known[-1:])[-_RECENT - 1 :]
        count, took = np.diff(ends), np.diff(seconds[ends])
        # The clock restarts when a run is resumed.
        count, took = count[took > 0], took[took > 0]
        return float(took.sum() / count.sum()) if count.size else None

    def _curves(self, done: int, width: int, height: int, columns: int) -> rich.table.Table:
        grid = rich.table.Table.grid()
        panels = [self._panel(figure, done, width, height) for figure in self._figures]
        for first in range(0, len(panels), columns):
            grid.add_row(*panels[first : first + columns])
        return grid

    def _panel(self, figure: Figure, done: int, width: int, height: int) -> rich.panel.Panel:
        marks = self._limits if figure is _COST else []
        lines = curves.plot(
            self._rows.values[figure.name][:, :done], width=width - 2, height=height, marks=marks, bounds=figure.bounds
        )
        text = rich.text.Text("\n".join(lines), no_wrap=True)
        text.highlight_regex("[\u2801-\u28ff]+", "cyan")
        text.highlight_regex(f"{curves.SPREAD}+", "blue")
        text.highlight_regex(f"{curves.MARK}+", "red")
        limit = f" (limit {', '.join(curves.short(mark) for mark in marks)})" if marks else ""
        mean, deviation = _mean_and_deviation(self._newest(figure, done))
        spread = f" ({deviation})" if len(self._lanes) > 1 else ""
        title = rich.text.Text(f"{figure.title} {mean}{spread}{limit}")
        return rich.panel.Panel(
            text,
            title=title,
            title_align="left",
            # As part of the lower border it needs no extra line; rich adds a space and a dash on the right.
            subtitle=curves.axis("1", "iteration", str(done), width=width - 4),
            subtitle_align="right",
            width=width,
            padding=0,
            box=rich.box.ROUNDED,
        )

    def _table(self, done: int, width: int, lines: int | None) -> list[rich.console.RenderableType]:
        """The latest values: mean over all lanes, the lanes, and a note if some are left out.

        lines: maximum number of lines for lanes. Columns that do not fit are left out; their means are in the titles of
        the curves.
        """
        pieces = [_pieces(lane.name) for lane in self._lanes]
        narrowest = max(len(piece.strip()) for name in pieces for piece in name) + _PADDING
        ends = itertools.accumulate((len(figure.title) + _PADDING for figure in self._figures), initial=narrowest)
        figures = self._figures[: max(1, sum(end <= width for end in ends) - 1)]
        room = width - _PADDING - sum(len(figure.title) + _PADDING for figure in figures)
        names = [_packed(name, room) for name in pieces]
        shown = len(names)
        if lines is not None:
            shown = max(1, sum(end <= lines for end in itertools.accumulate(name.count("\n") + 1 for name in names)))
        newest = [self._newest(figure, done) for figure in figures]
        table = rich.table.Table(box=None)
        table.add_column("lane", overflow="fold")
        for figure in figures:
            table.add_column(figure.title, justify="right", no_wrap=True)
        if len(names) > 1:
            table.add_row("mean", *(_mean_and_deviation(values)[0] for values in newest), style="bold")
        for place, name in enumerate(names[:shown]):
            table.add_row(name, *(curves.short(values[place]) for values in newest))
        hidden = len(names) - shown
        return [table, rich.text.Text(f"{hidden} more lanes; --once shows all.")] if hidden else [table]

    def _newest(self, figure: Figure, done: int) -> np.ndarray:
        """The last known value of each lane, [S]; NaN if there is none."""
        values = self._rows.values[figure.name][:, :done]
        last = done - 1 - np.argmax(np.isfinite(values)[:, ::-1], axis=1)
        return values[np.arange(len(values)), last]


def _mean_and_deviation(values: np.ndarray) -> tuple[str, str]:
    """Mean and standard deviation over lanes [S], as text."""
    mean, deviation = curves.mean_and_deviation(values[:, None])
    return curves.short(mean[0]), curves.short(deviation[0])


def _pieces(name: str) -> list[str]:
    """A lane's name, split where a line may break: after a space, an equals sign, and a dot of a field's path."""
    return re.split(r"(?<=[ =])|(?<=\.)(?=[a-z_])", name)


def _packed(pieces: list[str], width: int) -> str:
    """The pieces, wrapped to lines of at most `width`."""
    lines = [""]
    for piece in pieces:
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)
