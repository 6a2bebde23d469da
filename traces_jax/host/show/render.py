"""Images and videos of MuJoCo states. The only file that uses OpenGL and PyAV."""

import copy
import ctypes.util
import fractions
import importlib.util
import itertools
import math
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Self

import mujoco
import numpy as np

from traces_jax.host import errors, files
from traces_jax.host.show import strip

WIDTH, HEIGHT = 480, 360

# A higher frame rate is not visible and takes more time to render.
_MOST_FRAMES_PER_SECOND = 50

# Suffix -> container, encoder and its options. Fast settings: the images are simple, so files stay small anyway.
_FORMATS: dict[str, tuple[str, str, dict[str, str]]] = {
    ".mp4": ("mp4", "libx264", {"crf": "23", "preset": "veryfast"}),
    ".webm": ("webm", "libvpx-vp9", {"crf": "32", "b:v": "0", "deadline": "realtime", "cpu-used": "8"}),
}


class Painter:
    """Renders states of one model. Use it in a `with` block: MuJoCo warns about contexts left open at exit."""

    def __init__(
        self,
        mj_model: mujoco.MjModel,
        *,
        camera: str | mujoco.MjvCamera = "track",
        width: int = WIDTH,
        height: int = HEIGHT,
    ):
        _choose_backend()
        self._model = copy.copy(mj_model)  # the frame buffer is resized in a copy, not in the caller's model
        self._model.vis.global_.offwidth = width
        self._model.vis.global_.offheight = height
        self._data = mujoco.MjData(self._model)
        self._camera = camera
        try:
            self._renderer = mujoco.Renderer(self._model, height, width)
        # A missing library raises any of these, depending on backend and driver.
        except (ImportError, AttributeError, OSError, RuntimeError, mujoco.FatalError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise _no_graphics(reason) from None

    def draw(self, qpos: np.ndarray) -> np.ndarray:
        """qpos: [nq]. Returns uint8 [height, width, 3]. For a non-finite state, the last finite one is drawn."""
        if np.all(np.isfinite(qpos)):
            self._data.qpos[:] = qpos
        # Kinematics is enough to draw; contacts and forces are not shown.
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, camera=self._camera)
        # Without a GPU, shadows and reflections would take most of the rendering time.
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        return self._renderer.render()

    def close(self) -> None:
        """Frees the rendering context; a second call does nothing."""
        self._renderer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def frames(
    mj_model: mujoco.MjModel,
    qpos: np.ndarray,
    *,
    camera: str = "track",
    width: int = WIDTH,
    height: int = HEIGHT,
    every: int = 1,
) -> Iterator[np.ndarray]:
    """Draws every `every`-th state of qpos [T, nq]. Yields uint8 [height, width, 3]."""
    with Painter(mj_model, camera=camera, width=width, height=height) as painter:
        for state in qpos[::every]:
            yield painter.draw(state)


def pace(environment_seconds: float) -> tuple[int, fractions.Fraction]:
    """For playback in real time: the number of steps per frame, and the frames per second."""
    step_rate = fractions.Fraction(1 / environment_seconds).limit_denominator(1000)
    every = math.ceil(step_rate / _MOST_FRAMES_PER_SECOND)
    return every, step_rate / every


def check_video_name(path: pathlib.Path) -> None:
    """Refuses a video that could not be written, before any work is done for it."""
    if path.suffix not in _FORMATS:
        raise errors.UserError(f"video {str(path)!r} is not right: its name must end in {' or '.join(_FORMATS)}.")
    if not path.parent.is_dir():
        raise errors.UserError(f"video {str(path)!r} cannot be written: folder {str(path.parent)!r} does not exist.")
    files.check_can_write(path)
    if importlib.util.find_spec("av") is None:
        raise errors.UserError("a video needs the package av, which is missing; pip install 'traces_jax[video]'.")


def write_episode(
    path: pathlib.Path,
    mj_model: mujoco.MjModel,
    qpos: np.ndarray,
    environment_seconds: float,
    below: strip.Strip | None = None,
) -> None:
    """Renders the states qpos [T, nq] of an episode to a real-time video. below: curves to show below it."""
    every, fps = pace(environment_seconds)
    pictures = frames(mj_model, qpos, every=every)
    write_video(path, pictures if below is None else with_curves(pictures, below, every), fps)


def with_curves(pictures: Iterable[np.ndarray], below: strip.Strip, every: int) -> Iterator[np.ndarray]:
    """Images of every `every`-th step, with the curves up to that step below."""
    for number, picture in enumerate(pictures):
        yield np.concatenate([picture, below.draw(number * every)])


def write_video(
    path: pathlib.Path, frames: Iterable[np.ndarray], fps: fractions.Fraction | float, *, exact: bool = False
) -> None:
    """Writes frames uint8 [H, W, 3] as .mp4 (H.264) or .webm (VP9), atomically.

    exact: every frame is complete in itself, so that a player can go to any of them at once.
    """
    check_video_name(path)
    import av  # an optional dependency, only for videos

    container_name, encoder, options = _FORMATS[path.suffix]
    options = {**options, "g": "1"} if exact else options
    remaining = iter(frames)
    first = next(remaining, None)
    if first is None:
        raise errors.UserError(f"video {str(path)!r} would have no frames; give at least one state.")
    height, width = first.shape[:2]
    if height % 2 or width % 2:
        raise errors.UserError(f"video size {width}x{height} is not right: width and height must be even.")
    with files.beside(path) as temporary, av.open(str(temporary), "w", format=container_name) as container:
        rate = fractions.Fraction(fps).limit_denominator(1000)
        stream = container.add_stream(encoder, rate=rate, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for picture in itertools.chain([first], remaining):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def _choose_backend() -> None:
    """Selects EGL or OSMesa if there is no display, unless the user has set MuJoCo's environment variable.

    MuJoCo reads the variable on import, before this function runs, so its context module is reloaded here.
    """
    if "MUJOCO_GL" in os.environ or sys.platform != "linux" or os.environ.get("DISPLAY"):
        return
    backend = next((name for name in ("EGL", "OSMesa") if ctypes.util.find_library(name)), None)
    if backend is None:
        raise _no_graphics("neither EGL nor OSMesa is there")
    os.environ["MUJOCO_GL"] = backend.lower()
    try:
        importlib.reload(sys.modules[mujoco.Renderer.__module__].gl_context)
    except (ImportError, AttributeError, OSError):
        del os.environ["MUJOCO_GL"]
        raise _no_graphics(f"{backend} cannot be loaded") from None


def _no_graphics(reason: str) -> errors.UserError:
    return errors.UserError(
        f"no picture can be drawn on this machine ({reason}); "
        "apt install libegl1 libgl1 and set MUJOCO_GL=egl, or libosmesa6 and MUJOCO_GL=osmesa."
    )
