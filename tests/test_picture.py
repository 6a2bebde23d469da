"""The README's moving picture: it moves at the right pace, and is as small as asked."""

import pathlib

import numpy as np
import PIL.Image
import pytest

from benchmarks import picture
from traces_jax.host import errors


def frames(count: int = 6) -> list[np.ndarray]:
    """Noise, which is hard to compress; another in each frame."""
    return list(np.random.default_rng(0).integers(0, 256, (count, 64, 80, 3), np.uint8))


def test_all_frames_play_at_their_pace(tmp_path: pathlib.Path):
    path = tmp_path / "moves.webp"
    size = picture.write(path, frames(), rate=20.0)
    assert path.stat().st_size == size
    with PIL.Image.open(path) as found:
        assert (found.format, found.n_frames, found.size) == ("WEBP", 6, (80, 64))
        found.seek(1)
        found.load()  # durations are known then
        assert found.info["duration"] == 50


def test_quality_gives_way_to_size(tmp_path: pathlib.Path):
    best = picture.write(tmp_path / "best.webp", frames(), rate=20.0)
    assert picture.write(tmp_path / "small.webp", frames(), rate=20.0, most=best - 1) < best
    with pytest.raises(errors.UserError, match=r"more than 100 bytes; fewer --steps"):
        picture.write(tmp_path / "none.webp", frames(), rate=20.0, most=100)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["best.webp", "small.webp"]
