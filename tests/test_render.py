"""Pictures and videos: they show the robot, have the right length, and appear whole or not at all."""

import ctypes.util
import fractions
import pathlib
import sys

import av
import numpy as np
import pytest

from traces_jax import tasks
from traces_jax.host import errors
from traces_jax.host.show import palette, render, strip

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


def a_strip(steps: int = 20) -> strip.Strip:
    """Every step costs 1, and its credit is 0.1."""
    return strip.Strip(
        np.full(steps, 0.1, np.float32),
        np.exp(-0.1 * np.arange(1, steps + 1)),
        np.ones(steps, np.float32),
        limit=10.0,
        width=480,
    )


@needs_graphics
def test_curves_under_an_episode_move_with_it(hopper: tasks.PhysicsTask, tmp_path: pathlib.Path):
    model, below = hopper.physics.mj_model, a_strip()
    qpos = np.tile(model.qpos0, (20, 1))
    path = tmp_path / "curves.mp4"
    render.write_episode(path, model, qpos, hopper.physics.environment_seconds, below)
    pictures, _, _ = read(path)
    assert len(pictures) == 7  # of 20 steps every third
    for number, picture in enumerate(pictures):
        assert picture.shape == (render.HEIGHT + strip.HEIGHT, render.WIDTH, 3)
        assert orange(picture[: render.HEIGHT]) > 100
        drawn = below.draw(3 * number)
        difference = np.abs(picture[render.HEIGHT :].astype(int) - drawn)
        assert difference.mean() < 8, "what the encoder loses, and no more"
    render.write_episode(path, model, qpos[:1], hopper.physics.environment_seconds)
    assert read(path)[0][0].shape == (render.HEIGHT, render.WIDTH, 3), "plain without curves"


def rows(place: int) -> slice:
    """The rows of a panel: three of equal height, each below a line of text."""
    height = (strip.HEIGHT - 10) // 3
    return slice(5 + place * height + 20, 5 + (place + 1) * height - 5)


def colour_share(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Columns [W] in which there is a pixel of nearly that colour."""
    return np.any(np.abs(picture.astype(int) - colour).max(axis=-1) < 40, axis=0)


def brighter(colour: str) -> tuple[int, int, int]:
    """A colour of the palette as it is on a dark background."""
    return palette.lighter(colour, 0.3)


def test_curves_show_what_was_and_not_what_comes():
    below = a_strip()
    panel = slice(12, 468)
    for step, share in ((0, 0.0), (10, 10 / 19), (19, 1.0)):
        picture = below.draw(step)
        assert picture.shape == (strip.HEIGHT, 480, 3) and picture.dtype == np.uint8
        for place, colour in enumerate((palette.CREDIT, palette.PROBABILITY, palette.COST)):
            curve = picture[rows(place), panel]
            assert colour_share(curve, brighter(colour)).mean() == pytest.approx(share, abs=0.05)
    middle, end = below.draw(10), below.draw(19)
    np.testing.assert_array_equal(middle[:, :200], end[:, :200])
    above = slice(0, rows(0).start)
    assert not np.any(middle[above] != end[above]), "the credit is the same"
    above = slice(rows(1).stop, rows(2).start)
    assert np.any(middle[above, 300:] != end[above, 300:]), "the values above the curves change"


def test_curves_have_the_right_height():
    """After all 20 steps the cost is twice the limit, and p is exp(-2)."""
    picture = a_strip().draw(19).astype(int)
    for place, colour, expected in ((1, palette.PROBABILITY, np.exp(-2)), (2, palette.COST, 1.0)):
        column = picture[rows(place), 440]
        (found,) = np.nonzero(np.abs(column - brighter(colour)).max(axis=-1) < 40)
        assert 1 - found.mean() / len(column) == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize(
    ("credit", "cost", "limit"),
    [
        ([0.0], [0.0], 0.0),
        ([7.0, 1e-9], [1e6, 0.0], 1e5),
        ([1e-5] * 3000, [1e-6] * 3000, 2.5),
        ([0.123456] * 3, [0.0, 12.345, 1e4], 25.0),
    ],
    ids=["one step", "large", "long", "mixed"],
)
def test_curves_of_any_size(credit: list[float], cost: list[float], limit: float):
    """Every number can be written with the letters there are, and nothing leaves the picture."""
    below = strip.Strip(np.asarray(credit), np.exp(-np.cumsum(credit)), np.asarray(cost), limit, width=480)
    for step in {0, len(credit) // 2, len(credit) - 1}:
        picture = below.draw(step)
        assert picture.shape == (strip.HEIGHT, 480, 3) and picture.std() > 5


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
