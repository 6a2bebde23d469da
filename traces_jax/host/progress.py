"""What a person sees while a run goes on."""

import time
from collections.abc import Mapping

import numpy as np
import rich.console
import rich.progress

_COLUMNS = {"return": "episode/return", "cost": "episode/cost", "lambda": "constraint/multiplier"}


class Progress:
    """A live bar on a terminal; plain lines elsewhere, at most one every `period` seconds."""

    def __init__(self, iterations: int, steps_per_iteration: int, period: float = 10.0):
        self._console = rich.console.Console()
        self._iterations = iterations
        self._first = 0
        self._steps = steps_per_iteration
        self._period = period
        self._start = time.monotonic()
        self._last_line = -period
        self._live = self._console.is_terminal
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=None),
            rich.progress.TextColumn("{task.completed}/{task.total}"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(),
            console=self._console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("compiling", total=iterations)

    def __enter__(self) -> "Progress":
        self._bar.start()
        if not self._live:
            self.say("compiling")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the terminal to others."""
        self._bar.stop()

    def begin(self, done: int) -> None:
        """Starts the clock of a run of which `done` iterations were finished earlier."""
        self._first = done
        self._start = time.monotonic()
        self._bar.update(self._task, completed=done)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, flush=True)

    def update(self, done: int, rows: Mapping[str, np.ndarray]) -> None:
        """done: finished iterations. rows: name -> [S, n]; the newest column is shown, mean over lanes."""
        elapsed = time.monotonic() - self._start
        rate = (done - self._first) * self._steps / elapsed
        numbers = "  ".join(f"{name} {_mean(rows[key][:, -1])}" for name, key in _COLUMNS.items())
        text = f"{numbers}  {rate:,.0f} steps/s"
        self._bar.update(self._task, completed=done, description=text)
        if not self._live and (elapsed - self._last_line >= self._period or done == self._iterations):
            self._last_line = elapsed
            left = elapsed / max(1, done - self._first) * (self._iterations - done)
            print(f"iteration {done}/{self._iterations}  {text}  {clock(left)} left", flush=True)


def _mean(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return f"{known.mean():.2f}" if known.size else "-"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
