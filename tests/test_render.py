"""Pictures and videos: they show the robot, have the right length, and appear whole or not at all."""

import ctypes.util
import fractions
import pathlib
import sys

import av
import numpy as np
import pytest

from traces_jax import tasks
from traces_jax.host import errors, render

needs_graphics = pytest.mark.skipif(
    sys.platform == "linux" and not any(ctypes.util.find_library(name) for name in ("EGL", "OSMesa")),
    reason="neither libEGL nor libOSMesa is installed (apt install libegl1 libgl1)",
)


@pytest.fixture(scope="module")
def hopper() -> tasks.PhysicsTask:
    task = tasks.make("SafetyHopperVelocity-v1")
    assert isinstance(task, tasks.PhysicsTask)
    return task


def read(path: pathlib.Path) -> tuple[list[np.ndarray], fractions.Fraction, str]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert stream.average_rate is not None
        return pictures, fractions.Fraction(stream.average_rate), stream.codec.name


def orange(picture: np.ndarray) -> int:
    """Pixels of the torso's colour; floor and sky have none."""
    red, green, blue = np.moveaxis(picture.astype(int), -1, 0)
    return int(np.sum((red > 150) & (red - green > 50) & (green - blue > 30)))


@needs_graphics
@pytest.mark.parametrize(("suffix", "codec"), [(".mp4", "h264"), (".webm", "vp9")])
def test_video_of_a_fall(hopper: tasks.PhysicsTask, tmp_path: pathlib.Path, suffix: str, codec: str):
    qpos = np.tile(hopper.physics.mj_model.qpos0, (20, 1))
    qpos[:, 2] = np.linspace(0.0, 1.2, 20)  # tips over
    every, fps = render.pace(hopper.physics.environment_seconds)
    path = tmp_path / f"fall{suffix}"
    model = hopper.physics.mj_model
    render.write_video(path, render.frames(model, qpos, width=240, height=180, every=every), fps)
    pictures, rate, name = read(path)
    assert len(pictures) == 7  # of 20 steps every third
    assert rate == fractions.Fraction(125, 3)
    assert name == codec
    for picture in pictures:
        assert picture.shape == (180, 240, 3)
        assert picture.std() > 10
        assert orange(picture) > 100
    moved = np.abs(pictures[0].astype(int) - pictures[-1]).max(axis=-1) > 60
    assert 200 < moved.sum() < 0.2 * moved.size  # the robot moves; the world stands still
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@needs_graphics
def test_camera_follows_and_broken_states_hold_the_picture(hopper: tasks.PhysicsTask):
    qpos = np.tile(hopper.physics.mj_model.qpos0, (3, 1))
    qpos[1, 0] = 50.0
    qpos[2] = np.nan
    first, far, broken = render.frames(hopper.physics.mj_model, qpos, width=240, height=180)
    assert first.dtype == np.uint8
    assert orange(far) == pytest.approx(orange(first), rel=0.1) and orange(first) > 100
    np.testing.assert_array_equal(broken, far)


@needs_graphics
def test_picture_may_be_larger_than_the_models_frame_buffer(hopper: tasks.PhysicsTask):
    model = hopper.physics.mj_model
    (picture,) = render.frames(model, model.qpos0[None], width=800, height=600)
    assert picture.shape == (600, 800, 3)
    assert model.vis.global_.offwidth == 640  # the caller's model is left alone


@pytest.mark.parametrize(
    ("seconds", "every", "fps"),
    [(0.05, 1, "20"), (0.008, 3, "125/3"), (0.02, 1, "50"), (1 / 60, 2, "30"), (0.0199, 2, "1250000/49749")],
)
def test_pace_is_real_time_at_most_50_frames(seconds: float, every: int, fps: str):
    found_every, found_fps = render.pace(seconds)
    assert found_every == every
    assert float(found_fps) == pytest.approx(float(fractions.Fraction(fps)), rel=1e-3)
    assert found_fps <= 50


def test_a_failure_while_drawing_leaves_no_file(tmp_path: pathlib.Path):
    def breaks():
        for _ in range(100):  # enough for the encoder to have begun its file
            yield np.zeros((16, 16, 3), np.uint8)
        assert list(tmp_path.iterdir())
        raise RuntimeError("the lamp went out")

    with pytest.raises(RuntimeError, match="lamp"):
        render.write_video(tmp_path / "half.mp4", breaks(), 20)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "pictures", "says"),
    [
        ("film.avi", [np.zeros((16, 16, 3), np.uint8)], r"\.mp4 or \.webm"),
        ("missing/film.mp4", [np.zeros((16, 16, 3), np.uint8)], "folder .* does not exist"),
        ("film.mp4", [np.zeros((15, 16, 3), np.uint8)], "16x15 .* even"),
        ("film.mp4", [], "no frames"),
    ],
)
def test_what_cannot_be_a_video(tmp_path: pathlib.Path, name: str, pictures: list[np.ndarray], says: str):
    with pytest.raises(errors.UserError, match=says):
        render.write_video(tmp_path / name, pictures, 20)
    assert not list(tmp_path.iterdir())


def test_missing_av_names_the_extra(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(errors.UserError, match=r"pip install 'traces_jax\[video\]'"):
        render.write_video(tmp_path / "film.mp4", [np.zeros((16, 16, 3), np.uint8)], 20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux chooses between EGL and OSMesa")
def test_missing_graphics_name_the_packages(hopper: tasks.PhysicsTask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(errors.UserError, match=r"apt install libegl1 libgl1 .* or libosmesa6"):
        render.Painter(hopper.physics.mj_model)
