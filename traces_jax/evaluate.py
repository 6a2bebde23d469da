"""Evaluate: python -m traces_jax.evaluate --run runs/ant --episodes 100

Plays fresh episodes with the mean action and frozen statistics; prints and saves return, true cost and acceptance
rate as mean (std) over seeds.
"""

import pathlib
import sys

from absl import flags

from traces_jax.host import cli, errors, runtime

_RUN = flags.DEFINE_string("run", None, "Run folder.")
_EPISODES = flags.DEFINE_integer("episodes", 100, "Episodes of each seed.")
_SEED = flags.DEFINE_integer("seed", None, "Only this seed. Default: all.")
_STEP = flags.DEFINE_string("step", "latest", "latest, best, or a number of finished iterations.")
_VIDEO = flags.DEFINE_string("video", None, "Also draw one episode of the first seed to this file (.mp4 or .webm).")


def main() -> int:
    """The command line."""
    if _RUN.value is None:
        raise errors.UserError("--run is missing; give a run folder such as runs/ant.")
    if _EPISODES.value < 1:
        raise errors.UserError(f"--episodes={_EPISODES.value} is not right: it must be at least 1.")
    folder = pathlib.Path(_RUN.value)
    video = pathlib.Path(_VIDEO.value) if _VIDEO.value else None
    runtime.setup()

    from traces_jax import tasks  # after set-up: these may touch JAX's devices
    from traces_jax.host import evaluation, render, run

    if video:
        render.check_video_name(video)
    loaded = run.load(folder, _STEP.value, _SEED.value, lambda text: print(text, file=sys.stderr))
    evaluation.evaluate(loaded.built, loaded.state, folder, iteration=loaded.iteration, count=_EPISODES.value)
    print(f"saved: {folder / 'evaluation.json'}")
    if video:
        task = loaded.built.task
        if not isinstance(task, tasks.PhysicsTask):
            raise errors.UserError(f"task {task.name!r} has nothing to draw; leave --video out.")
        path = evaluation.positions(loaded.built, loaded.state)
        render.write_episode(video, task.physics.mj_model, path, task.physics.environment_seconds)
        print(f"video: {video}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
