"""Clips as WebM files, drawn and encoded in the background by one thread, and kept in the run folder."""

import concurrent.futures
import dataclasses
import fractions
import pathlib
import threading

import mujoco
import numpy as np

from traces_jax.host import files
from traces_jax.host.show import render

FOLDER = "clips"
# Small enough to be drawn without a GPU while somebody waits.
_WIDTH, _HEIGHT = 400, 300


@dataclasses.dataclass(frozen=True)
class Pace:
    """How a clip is played: every `every`-th step is a frame, `fps` frames are a second."""

    every: int
    fps: fractions.Fraction


class Studio:
    """Makes clips of one model.

    A rendering context belongs to the thread that made it, so that one thread draws everything. Whoever asks for a clip
    that is being made waits for it; no clip is made twice.
    """

    def __init__(self, folder: pathlib.Path, model: bytes, environment_seconds: float):
        self._folder = folder / FOLDER
        with files.writing(self._folder):
            self._folder.mkdir(exist_ok=True)
        self._model = model
        self.pace = Pace(*render.pace(environment_seconds))
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="clips")
        self._painter: render.Painter | None = None
        self._lock = threading.Lock()
        self._made: dict[str, concurrent.futures.Future[bytes]] = {}

    def clip(self, name: str, positions: np.ndarray) -> "concurrent.futures.Future[bytes]":
        """The WebM of positions [T, nq]. name: of its file, chosen by us and never by a request."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._thread.submit(self._make, name, positions)
                # Clips in memory are few: those read by nobody for long are read from their files again.
                while len(self._made) > 64:
                    self._made.pop(next(iter(self._made)))
            return self._made[name]

    def _make(self, name: str, positions: np.ndarray) -> bytes:
        path = self._folder / f"{name}.webm"
        if not path.is_file() or path.is_symlink():
            if self._painter is None:
                self._painter = render.Painter(unpacked(self._model), width=_WIDTH, height=_HEIGHT)
            pictures = (self._painter.draw(state) for state in positions[:: self.pace.every])
            render.write_video(path, pictures, self.pace.fps, exact=True)
        return path.read_bytes()

    def close(self) -> None:
        """Ends the thread."""
        self._thread.submit(self._leave)
        self._thread.shutdown(wait=True, cancel_futures=False)

    def _leave(self) -> None:
        if self._painter is not None:
            self._painter.close()


def unpacked(model: bytes) -> mujoco.MjModel:
    """A model from MuJoCo's binary format."""
    return mujoco.MjModel.from_binary_path("model.mjb", {"model.mjb": model})
