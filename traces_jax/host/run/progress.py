"""Progress output during a run."""

import math
import time
from collections.abc import Mapping
from typing import Self

import numpy as np
import rich.console
import rich.progress

_COLUMNS = {"return": "episode/return", "cost": "episode/cost", "lambda": "constraint/multiplier"}
_UNKNOWN = "-"


class Bar:
    """A live progress bar on a terminal; plain lines elsewhere, at most one every `period` seconds.

    what: name of the counted unit. total: number of units.
    """

    def __init__(self, what: str, total: int, period: float = 10.0):
        self._console = rich.console.Console()
        self._what = what
        self._total = total
        self._first: tuple[int, float] | None = None
        self._period = period
        self._last_line = -math.inf
        self._live = self._console.is_terminal
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.completed}/{task.total}"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("{task.fields[left]} left"),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("compiling", total=total, left=_UNKNOWN)

    def __enter__(self) -> Self:
        self._bar.start()
        if not self._live:
            self.say("compiling")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the live display."""
        self._bar.stop()

    def begin(self, done: int) -> None:
        """Starts at `done`, for work that is resumed."""
        self._first = None
        self._bar.update(self._task, completed=done)

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        if self._live:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, flush=True)

    def show(self, done: int, text: str) -> None:
        """Updates the progress and the text next to it."""
        rate = self.rate(done)
        left = clock((self._total - done) / rate) if rate else clock(0) if done == self._total else _UNKNOWN
        self._bar.update(self._task, completed=done, description=text, left=left)
        now = time.monotonic()
        if not self._live and (now - self._last_line >= self._period or done == self._total):
            self._last_line = now
            print(f"{self._what} {done}/{self._total}  {text}  {left} left", flush=True)

    def rate(self, done: int) -> float | None:
        """Units per second since the first update, so that compilation is excluded. None before it."""
        now = time.monotonic()
        if self._first is None:
            self._first = done, now
        before, start = self._first
        return (done - before) / (now - start) if done > before and now > start else None


class Progress(Bar):
    """The bar of a training run."""

    def __init__(self, iterations: int, steps_per_iteration: int):
        super().__init__("iteration", iterations)
        self._steps = steps_per_iteration

    def update(self, done: int, rows: Mapping[str, np.ndarray]) -> None:
        """done: finished iterations. rows: name -> [S, n]; the newest column is shown, mean over lanes."""
        rate = self.rate(done)
        speed = f"{rate * self._steps:,.0f}" if rate else _UNKNOWN
        numbers = "  ".join(f"{name} {_mean(rows[key][:, -1])}" for name, key in _COLUMNS.items() if key in rows)
        self.show(done, f"{numbers}  {speed} steps/s")


def _mean(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return f"{known.mean():.2f}" if known.size else _UNKNOWN


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
