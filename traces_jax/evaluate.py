"""Evaluate: python -m traces_jax.evaluate --run runs/ant --episodes 100

Runs new episodes with the mean action and frozen statistics. Prints and saves return, true cost and acceptance rate as
mean (std) over seeds. --diagnostics runs as many again with the policy's own noise, prints the estimator's accuracy and
calibration on them, and saves them step by step:

  diagnostics.npz  lanes [S]; return, length, accepted [S, N], the last 1 or 0, the label of the full episode; cost,
                   credit [S, N, T], the true cost and the mean clamped credit of each step, NaN after the end; limit
                   [], the summed cost up to which an episode is accepted ([S] if lanes differ in it); iteration [],
                   finished iterations of the state. A run with the true cost has no credit
"""

import pathlib
import sys

from absl import flags

from traces_jax.host import cli, errors, files, runtime

_RUN = flags.DEFINE_string("run", None, "Run folder.")
_EPISODES = flags.DEFINE_integer("episodes", 100, "Episodes of each seed.")
_SEED = flags.DEFINE_integer("seed", None, "Only this seed. Default: all.")
_STEP = flags.DEFINE_string(
    "step",
    "deployed",
    "deployed (the newest policy that satisfied the constraint), latest, best, or a number of finished iterations.",
)
_DIAGNOSTICS = flags.DEFINE_boolean("diagnostics", False, "Also save noisy episodes step by step, with their credits.")
_VIDEO = flags.DEFINE_string(
    "video", None, "Also draw an episode of the first seed, and its credits, to this file (.mp4, .webm)."
)


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
    from traces_jax.host.run import diagnostics, evaluation, restore
    from traces_jax.host.show import render, strip

    if video:
        render.check_video_name(video)
    loaded = restore.load(folder, _STEP.value, _SEED.value, lambda text: print(text, file=sys.stderr))
    place = evaluation.place(folder, _STEP.value, _SEED.value, loaded.iterations, _EPISODES.value, newest=loaded.newest)
    files.check_can_write(place)
    evaluation.evaluate(
        loaded.built,
        loaded.state,
        place,
        iterations=loaded.iterations,
        count=_EPISODES.value,
        deployed=loaded.deployed,
    )
    print(f"saved: {place}.json")
    if _DIAGNOSTICS.value:
        diagnosed = diagnostics.place(place)
        diagnostics.diagnose(
            loaded.built, loaded.policies, diagnosed, iterations=loaded.iterations, count=_EPISODES.value
        )
        print(f"saved: {diagnosed}")
    if video:
        task = loaded.built.task
        if not isinstance(task, tasks.PhysicsTask):
            raise errors.UserError(f"task {task.name!r} has nothing to draw; leave --video out.")
        episode = evaluation.episode(loaded.built, loaded.policies)
        below = None
        if episode.credit is not None and episode.probability is not None:
            below = strip.Strip(episode.credit, episode.probability, episode.cost, episode.limit, width=render.WIDTH)
        render.write_episode(video, task.physics.mj_model, episode.qpos, task.physics.environment_seconds, below)
        print(f"video: {video}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
