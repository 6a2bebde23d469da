"""Where the numbers of a report come from: the command, commit, time and evaluated state of each run."""

import dataclasses
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from traces_jax.host import errors, files
from traces_jax.host.report import read
from traces_jax.host.report.read import Lane
from traces_jax.host.report.tables import NONE, Cell, Table
from traces_jax.host.run import folder as folder_lib

_MOST_LETTERS = 400


@dataclasses.dataclass(frozen=True)
class Origin:
    """What is known of a run; empty text or None where it is not.

    Attributes:
      run: name of its folder in the report.
      command, commit: that began it, and of the program.
      seconds: of training, without pauses.
      iterations: finished ones.
      evaluated: what the closing evaluation played.
    """

    run: str
    command: str
    commit: str
    seconds: float | None
    iterations: int | None
    evaluated: str


def find(folder: pathlib.Path, run: str, lanes: Sequence[Lane]) -> Origin:
    """Reads run.json and evaluation.json, which may be missing or damaged."""
    description = folder_lib.description(folder)
    rows = [lane.rows for lane in lanes if lane.rows]
    return Origin(
        run,
        command=_command(description.get("command")),
        commit=_text(description.get("commit")),
        seconds=max((_seconds(own["seconds"]) for own in rows if "seconds" in own), default=None),
        iterations=max((len(own["steps"]) for own in rows), default=None),
        evaluated=_evaluated(folder),
    )


def table(origins: Sequence[Origin]) -> Table:
    """A row for each run."""
    rows = [
        [
            Cell(origin.run),
            Cell(origin.command or NONE),
            Cell(origin.commit or NONE),
            Cell(_clock(origin.seconds) if origin.seconds is not None else NONE),
            Cell(str(origin.iterations) if origin.iterations is not None else NONE),
            Cell(origin.evaluated or NONE),
        ]
        for origin in origins
    ]
    return Table("Runs", ["run", "command", "commit", "training time", "iterations", "evaluated"], rows)


def _command(arguments: Any) -> str:
    """A command line as one would type it: by the name of its module, whatever folder that was in."""
    if not isinstance(arguments, list) or not arguments or not all(isinstance(part, str) for part in arguments):
        return ""
    module = re.search(r"(?:^|/)(traces_jax(?:/\w+)+)\.py$", arguments[0])
    first = ["python", "-m", module[1].replace("/", ".")] if module else [pathlib.PurePath(arguments[0]).name]
    return _text(shlex.join([*first, *arguments[1:]]))


def _seconds(clock: np.ndarray) -> float:
    """clock: [I] seconds since the process began to train, which start again when a run is resumed."""
    known = clock[np.isfinite(clock)]
    steps = np.diff(known, prepend=0.0)
    return float(np.where(steps < 0, known, steps).sum())


def _evaluated(folder: pathlib.Path) -> str:
    """Such as "policies of iterations 480, 495, of 500"."""
    try:
        found = files.read_json(folder / "evaluation.json")
        played = sorted({int(lane["policy"]) for lane in found["lanes"] if "policy" in lane})
        last = int(found["iteration"])
    except (errors.UserError, ValueError, KeyError, TypeError, OverflowError):
        return ""
    shown = f"{played[0]} to {played[-1]}" if len(played) > 3 else ", ".join(map(str, played))
    return _text(f"iteration {shown} of {last}" if played else f"iteration {last}")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _text(value: Any) -> str:
    return read.printable(value)[:_MOST_LETTERS] if isinstance(value, str) else ""
