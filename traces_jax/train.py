"""Train: python -m traces_jax.train --config experiments/ant.py --config.seeds=8 --run_dir runs/ant

Every setting can be changed on the command line (--config.ppo.clip=0.1). The same command resumes a run that was
stopped. Press Ctrl-C to stop; the state is saved.
"""

import pathlib

from absl import flags
from ml_collections import config_flags

from traces_jax.host import cli, experiment, runtime

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment file, for instance experiments/ant.py.")
_LABELS = flags.DEFINE_enum(
    "labels", "wait", ["wait", "exit"], "Where people label: wait for their answers, or exit with code 75."
)
_RUN_DIR = flags.DEFINE_string("run_dir", None, "Folder of the run. Default: runs/<name of the experiment file>.")


def main() -> int:
    """The command line."""
    config = experiment.read(_CONFIG)
    experiment.note_idle(_CONFIG, config, print)
    folder = pathlib.Path(_RUN_DIR.value or f"runs/{experiment.path(_CONFIG).stem}")
    runtime.setup()

    # After set-up: nothing may touch JAX's devices before it.
    from traces_jax.host.label import outside
    from traces_jax.host.run import loop

    try:
        complete = loop.train(config, folder, labels=_LABELS.value)
    except outside.LabelsNeeded as needed:
        print(needed)
        return cli.LABELS_NEEDED
    print(f"run folder: {folder}")
    return cli.OK if complete else cli.STOPPED


if __name__ == "__main__":
    cli.run(main)
