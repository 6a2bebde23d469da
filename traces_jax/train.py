"""Train: python -m traces_jax.train --config experiments/ant.py --config.seeds=8 --run_dir runs/ant

Every setting can be changed on the command line (--config.ppo.clip=0.1). The same command resumes a run that was
stopped. Press Ctrl-C to stop; the state is saved.
"""

import pathlib

import ml_collections
from absl import flags
from ml_collections import config_flags

from traces_jax import config as config_lib
from traces_jax.host import cli, runtime

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment file, for instance experiments/ant.py.")
_RUN_DIR = flags.DEFINE_string("run_dir", None, "Folder of the run. Default: runs/<name of the experiment file>.")


def main() -> int:
    """The command line."""
    if _CONFIG.value is None:
        raise config_lib.ConfigError("--config is missing; give an experiment file such as experiments/ant.py.")
    assert isinstance(_CONFIG.value, ml_collections.ConfigDict)
    config = config_lib.from_dict(_CONFIG.value.to_dict())
    name = pathlib.Path(config_flags.get_config_filename(flags.FLAGS["config"])).stem
    folder = pathlib.Path(_RUN_DIR.value or f"runs/{name}")
    runtime.setup()

    from traces_jax.host import run  # after set-up: nothing may touch JAX's devices before it

    complete = run.train(config, folder)
    print(f"run folder: {folder}")
    return cli.OK if complete else cli.STOPPED


if __name__ == "__main__":
    cli.run(main)
