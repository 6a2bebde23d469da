"""The interface of a sink: a place for a run's rows besides metrics.jsonl."""

import abc
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

# Entries of a row that are not metrics.
NOT_METRICS = ("lane", "iteration", "steps", "seconds")


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """The run that a sink is for.

    Attributes:
      folder: its folder.
      identity: of the run; the same when it is resumed. None for runs of earlier versions.
      lanes: names of the lanes, as in the rows.
      config: all settings.
    """

    folder: pathlib.Path
    identity: str | None
    lanes: Sequence[str]
    config: Mapping[str, Any]


class Sink(abc.ABC):
    """A place for rows. Made when a run starts, and again when it resumes; rows come from the first iteration on.

    A row has `lane` (text), `iteration`, `steps`, `seconds`, and metrics: numbers, or None where there is none.
    """

    def __init__(self, run: RunInfo):
        self.run = run

    @abc.abstractmethod
    def add(self, row: Mapping[str, Any]) -> None:
        """Takes one row."""

    def flush(self, *, now: bool) -> None:
        """Called after each chunk of iterations. now: everything must be written before it returns."""
        del now

    def close(self) -> None:
        """Called once, at the end, also after an error."""
        return None
