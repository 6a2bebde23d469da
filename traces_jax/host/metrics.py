"""Rows of scalars, one for each lane and iteration: JSON lines for programs, TensorBoard for eyes."""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorboardX

from traces_jax.host import files


class MetricWriter:
    """Appends to `metrics.jsonl` and, if asked, to `tensorboard/<lane>/`."""

    def __init__(self, folder: pathlib.Path, lanes: Sequence[str], *, tensorboard: bool, iterations_done: int):
        self._lanes = list(lanes)
        self._path = folder / "metrics.jsonl"
        _drop_rows_from(self._path, iterations_done)
        self._file = self._path.open("a", encoding="utf-8")
        self._boards = []
        if tensorboard:
            # purge_step makes TensorBoard forget what a killed run wrote beyond its last checkpoint.
            self._boards = [
                tensorboardX.SummaryWriter(
                    str(folder / "tensorboard" / lane.replace("/", "_")), purge_step=iterations_done
                )
                for lane in lanes
            ]

    def write(self, start: int, rows: Mapping[str, np.ndarray], *, steps_per_iteration: int, seconds: float) -> None:
        """rows: name -> [S, iterations of the chunk], the first of them iteration `start`."""
        length = next(iter(rows.values())).shape[1]
        for offset in range(length):
            for lane, name in enumerate(self._lanes):
                iteration = start + offset
                row = {key: _json_number(values[lane, offset]) for key, values in rows.items()}
                steps = (iteration + 1) * steps_per_iteration
                line = {"lane": name, "iteration": iteration, "steps": steps, "seconds": round(seconds, 3), **row}
                self._file.write(json.dumps(line) + "\n")
                if self._boards:
                    for key, value in row.items():
                        if value is not None:
                            self._boards[lane].add_scalar(key, value, steps)
        self._file.flush()

    def close(self) -> None:
        """Flushes everything."""
        self._file.close()
        for board in self._boards:
            board.close()


def read(path: pathlib.Path) -> Iterator[dict]:
    """Rows of a metrics file; a last line cut short by a crash is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


class Follower:
    """Some numbers of a metrics file that may still grow; each look reads only what is new.

    Attributes:
      values: name -> [S, I] for all iterations of the run; not a number where nothing is known yet.
    """

    def __init__(self, path: pathlib.Path, lanes: Sequence[str], iterations: int, names: Iterable[str]):
        self._path = path
        self._lanes = {name: place for place, name in enumerate(lanes)}
        self.values = {name: np.full((len(lanes), iterations), np.nan) for name in names}
        self._read, self._file = 0, 0

    def look(self) -> None:
        """Takes in the lines that are complete by now. Damaged ones are passed over, and so are unknown lanes."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._file or status.st_size < self._read:
                # A resumed run has written its file anew, without the rows after its checkpoint.
                self._read, self._file = 0, status.st_ino
                for values in self.values.values():
                    values[:] = np.nan
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            lane, iteration = self._lanes[row["lane"]], int(row["iteration"])
            numbers = [math.nan if row.get(name) is None else float(row[name]) for name in self.values]
        # What a line of other content raises: no JSON, no row, other types in it.
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return
        for number, values in zip(numbers, self.values.values(), strict=True):
            if 0 <= iteration < values.shape[1]:
                values[lane, iteration] = number


def _drop_rows_from(path: pathlib.Path, iteration: int) -> None:
    """Removes rows that a killed run wrote after its last checkpoint; they will be written again."""
    if not path.exists():
        return
    kept = [json.dumps(row) for row in read(path) if row["iteration"] < iteration]
    files.write_text(path, "".join(line + "\n" for line in kept))


def _json_number(value: np.ndarray) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
