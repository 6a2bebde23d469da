"""The moving picture at the top of the README, a small animated WebP: an episode with its credits under it.

  python -m benchmarks.picture --run runs/half_cheetah --out docs/pictures/episode.webp

Draws the first steps of an episode of the mean action, in real time. The quality of the images is lowered until the
file is small enough.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
import PIL.Image

from traces_jax.host import errors, files, runtime

_WIDTH, _HEIGHT = 480, 288
# Frames are drawn this many times larger and then averaged: fine edges.
FINE = 2
_QUALITIES = (80, 65, 50, 35, 20)
MOST_BYTES = 800_000


def draw(run: pathlib.Path, step: str, seed: int | None, steps: int) -> tuple[list[np.ndarray], float]:
    """Frames uint8 [H, W, 3] of the first steps of an episode, and the frames per second."""
    from traces_jax import tasks  # after set-up: these may touch JAX's devices
    from traces_jax.host.run import evaluation, restore
    from traces_jax.host.show import render, strip

    loaded = restore.load(run, step, seed, lambda text: print(text, file=sys.stderr))
    task = loaded.built.task
    episode = evaluation.episode(loaded.built, loaded.policies)
    if episode.credit is None or episode.probability is None or not isinstance(task, tasks.PhysicsTask):
        raise errors.UserError(f"--run={run} is not right: a run of a task with physics, from labels, would be right.")
    every, rate = render.pace(task.physics.environment_seconds)
    shown = slice(0, steps)
    below = strip.Strip(
        episode.credit[shown], episode.probability[shown], episode.cost[shown], episode.limit, width=_WIDTH
    )
    pictures = render.frames(
        task.physics.mj_model,
        episode.qpos[shown],
        width=FINE * _WIDTH,
        height=FINE * _HEIGHT,
        every=every,
    )
    return list(render.with_curves(map(shrink, pictures), below, every)), float(rate)


def shrink(picture: np.ndarray) -> np.ndarray:
    """The mean of each `FINE` x `FINE` pixels; uint8 [FINE H, FINE W, 3] -> [H, W, 3]."""
    height, width = (size // FINE for size in picture.shape[:2])
    return picture.reshape(height, FINE, width, FINE, 3).mean(axis=(1, 3)).round().astype(np.uint8)


def write(path: pathlib.Path, frames: Sequence[np.ndarray], rate: float, most: int = MOST_BYTES) -> int:
    """Writes an animated WebP of at most `most` bytes, in the best quality that allows it. Returns its size."""
    first, *others = (PIL.Image.fromarray(frame) for frame in frames)
    milliseconds = round(1000 / rate)
    with files.beside(path) as temporary:
        for quality in _QUALITIES:
            first.save(
                temporary, "WEBP", save_all=True, append_images=others, duration=milliseconds, loop=0, quality=quality
            )
            if temporary.stat().st_size <= most:
                return temporary.stat().st_size
        raise errors.UserError(f"{path} would have more than {most} bytes; fewer --steps would be right.")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draws the moving picture of the README.")
    parser.add_argument("--run", required=True, type=pathlib.Path, help="run folder")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="file that ends in .webp")
    parser.add_argument("--steps", type=int, default=200, help="of the episode, from its start")
    parser.add_argument("--seed", type=int, help="default: the first")
    parser.add_argument("--step", default="deployed", help="as in traces_jax.evaluate")
    given = parser.parse_args()
    runtime.setup()
    try:
        frames, rate = draw(given.run, given.step, given.seed, given.steps)
        size = write(given.out, frames, rate)
    except errors.USER_ERRORS as error:
        parser.exit(2, f"picture: {error}\n")
    print(f"{given.out}: {len(frames)} frames, {rate:.0f} in a second, {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
