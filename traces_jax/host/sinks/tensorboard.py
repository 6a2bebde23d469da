"""Rows as TensorBoard files: tensorboard/<lane>/ in the run folder."""

import math
import shutil
import time
from collections.abc import Mapping
from typing import Any

from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2, summary_pb2

from traces_jax.host import files
from traces_jax.host.sinks.base import NOT_METRICS, RunInfo, Sink


class TensorBoard(Sink):
    """New TensorBoard files, a folder for each lane.

    Events are written in the calling thread. The usual writers use a background thread: if it dies because the disk is
    full, the next write blocks for ever.
    """

    _SECONDS_BETWEEN_FLUSHES = 10.0

    def __init__(self, run: RunInfo):
        self._folder = folder = run.folder / "tensorboard"
        self._flushed = -math.inf
        self._writers: dict[str, event_file_writer.EventsWriter] = {}
        with files.writing(folder):
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)
            for lane in run.lanes:
                own = folder / lane.replace("/", "_")
                own.mkdir(parents=True)
                self._writers[lane] = event_file_writer.EventsWriter(str(own / "events"))

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row of the metrics file as one event."""
        values = [
            summary_pb2.Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name not in NOT_METRICS and value is not None
        ]
        event = event_pb2.Event(step=row["steps"], wall_time=time.time(), summary=summary_pb2.Summary(value=values))
        with files.writing(self._folder):
            self._writers[row["lane"]].write_event(event)

    def flush(self, *, now: bool) -> None:
        """Writes buffered events to disk, which blocks: at most every few seconds, unless `now` is set."""
        if not now and time.monotonic() - self._flushed < self._SECONDS_BETWEEN_FLUSHES:
            return
        with files.writing(self._folder):
            for writer in self._writers.values():
                writer.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and closes the files."""
        with files.writing(self._folder):
            for writer in self._writers.values():
                writer.close()
