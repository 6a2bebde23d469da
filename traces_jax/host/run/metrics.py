"""Rows of scalars, one for each lane and iteration, as JSON lines.

`metrics.jsonl` is authoritative. Other places (`host.sinks`) are given its rows anew whenever a run starts or resumes,
so that all have the same history.
"""

import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from traces_jax.host import files
from traces_jax.host.sinks import Sink

# Maximum bytes of a line, far more than a row has.
_LONGEST = 1 << 20


class MetricWriter:
    """Appends to `metrics.jsonl`, and passes every row on to the sinks."""

    def __init__(
        self,
        folder: pathlib.Path,
        rows_before: Mapping[str, int],
        *,
        sinks: Sequence[Sink] = (),
        say: Callable[[str], None],
    ):
        """rows_before: lane -> how many of its iterations have rows already. say: called if rows are lost.

        The sinks are given those rows again, and are closed with the writer.
        """
        self._lanes = list(rows_before)
        self._path = folder / "metrics.jsonl"
        _keep(self._path, rows_before, say)
        with files.writing(self._path):
            self._file = self._path.open("a", encoding="utf-8")
        self._sinks = sinks
        if sinks:
            for row in read(self._path):
                self._add(row)
            self.flush()

    def write(self, start: int, rows: Mapping[str, np.ndarray], *, steps_per_iteration: int, seconds: float) -> None:
        """rows: name -> [S, iterations of the chunk], the first of them iteration `start`.

        No rows are written for a lane after it has become non-finite.
        """
        sound = rows["finite"] > 0
        with files.writing(self._path):
            for offset in range(sound.shape[1]):
                for lane in np.flatnonzero(sound[:, offset]):
                    iteration = start + offset
                    line = {
                        "lane": self._lanes[lane],
                        "iteration": iteration,
                        "steps": (iteration + 1) * steps_per_iteration,
                        "seconds": round(seconds, 3),
                        **{key: _json_number(values[lane, offset]) for key, values in rows.items()},
                    }
                    self._file.write(json.dumps(line) + "\n")
                    self._add(line)
            self._file.flush()
        for sink in self._sinks:
            sink.flush(now=False)

    def flush(self) -> None:
        """Writes all buffered rows to the files."""
        for sink in self._sinks:
            sink.flush(now=True)

    def close(self) -> None:
        """Flushes everything."""
        with files.writing(self._path):
            self._file.close()
        for sink in self._sinks:
            sink.close()

    def _add(self, row: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.add(row)


def read(path: pathlib.Path, note: Callable[[str], None] = lambda text: None) -> Iterator[dict[str, Any]]:
    """Rows of a metrics file. note: called at the end if lines were damaged.

    An incomplete last line, as a crash leaves it, is ignored.
    """
    wrong: list[int] = []
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            row = _row(line)
            if row is not None:
                yield row
            elif line.endswith(b"\n"):
                wrong.append(number)
    if wrong:
        which = f"line {wrong[0]} is" if len(wrong) == 1 else f"{len(wrong)} lines, the first of them {wrong[0]}, are"
        note(f"{path.name}: {which} damaged and left out")


def _lines(file) -> Iterator[bytes]:
    """The lines of a binary file. A line that is too long for a row is cut."""
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST and not line.endswith(b"\n"):
            while (rest := file.readline(_LONGEST)) and not rest.endswith(b"\n"):
                pass
            line = b"too long\n"
        yield line


def _row(line: bytes) -> dict[str, Any] | None:
    """A line as a row: a lane, an iteration, environment steps, and numbers. None if it is not a row."""
    try:
        row = json.loads(line)
        known = isinstance(row, dict) and isinstance(row["lane"], str)
        if not known or not all(type(row[name]) is int and 0 <= row[name] < 2**63 for name in ("iteration", "steps")):
            return None
        numbers = [value for name, value in row.items() if name != "lane" and value is not None]
        # `float` raises for an integer that is too large.
        return row if all(type(value) in (int, float) for value in numbers) and [*map(float, numbers)] else None
    # Not JSON, not UTF-8, nested too deeply, numbers too long, no iteration.
    except (ValueError, RecursionError, KeyError, OverflowError):
        return None


class Follower:
    """Selected metrics of a file that may still grow; each `look` reads only new lines.

    Attributes:
      values: name -> [S, I] for all iterations of the run; NaN where there is no row yet.
    """

    def __init__(self, path: pathlib.Path, lanes: Sequence[str], iterations: int, names: Iterable[str]):
        self._path = path
        self._lanes = {name: place for place, name in enumerate(lanes)}
        self.values = {name: np.full((len(lanes), iterations), np.nan) for name in names}
        self._read, self._file = 0, 0

    def look(self) -> None:
        """Reads the new complete lines. Damaged lines and unknown lanes are skipped."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._file or status.st_size < self._read:
                # A resumed run has rewritten its file, without the rows after its checkpoint.
                self._read, self._file = 0, status.st_ino
                for values in self.values.values():
                    values[:] = np.nan
            file.seek(self._read)
            for line in _lines(file):
                if not line.endswith(b"\n"):
                    break
                self._read = file.tell()
                self._take(_row(line))

    def _take(self, row: Mapping[str, Any] | None) -> None:
        if row is None or row["lane"] not in self._lanes:
            return
        lane, iteration = self._lanes[row["lane"]], row["iteration"]
        for name, values in self.values.items():
            if iteration < values.shape[1]:
                values[lane, iteration] = math.nan if row.get(name) is None else row[name]


def _keep(path: pathlib.Path, rows_before: Mapping[str, int], say: Callable[[str], None]) -> None:
    """Removes rows that a killed run wrote after its last checkpoint; they will be written again."""
    if not path.exists():
        if any(rows_before.values()):
            say(f"{path.name} is missing: the rows of the first {max(rows_before.values())} iterations are lost.")
        return
    held: dict[str, set[int]] = {lane: set() for lane in rows_before}
    with files.beside(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in read(path, lambda text: say(f"{text}.")):
            lane, iteration = row["lane"], row["iteration"]
            if iteration < rows_before.get(lane, 0) and iteration not in held[lane]:
                held[lane].add(iteration)
                file.write(json.dumps(row) + "\n")
    for lane, iterations in held.items():
        if missing := rows_before[lane] - len(iterations):
            say(f"{path.name}: {missing} of the first {rows_before[lane]} rows of {lane} are missing.")


def _json_number(value: np.ndarray) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
