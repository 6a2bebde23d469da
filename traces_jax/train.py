"""Train: python -m traces_jax.train --config experiments/ant.py --config.seeds=8 --run_dir runs/ant

Every setting can be changed on the command line (--config.ppo.clip=0.1). The same command resumes a run that was
stopped. Press Ctrl-C to stop; the state is saved.
"""

import pathlib
from typing import Any

from absl import flags
from ml_collections import config_flags

from traces_jax import config as config_lib
from traces_jax.host import cli, errors, runtime

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment file, for instance experiments/ant.py.")
_RUN_DIR = flags.DEFINE_string("run_dir", None, "Folder of the run. Default: runs/<name of the experiment file>.")


def main() -> int:
    """The command line."""
    if _CONFIG.value is None:
        raise config_lib.ConfigError("--config is missing; give an experiment file such as experiments/ant.py.")
    experiment = pathlib.Path(config_flags.get_config_filename(flags.FLAGS["config"]))
    if not experiment.exists():
        raise errors.UserError(f"--config={experiment} does not exist; experiments/ has examples.")
    given = config_flags.get_override_values(flags.FLAGS["config"])
    config = config_lib.from_dict(config_lib.with_preset(_read(_CONFIG.value), given))
    folder = pathlib.Path(_RUN_DIR.value or f"runs/{experiment.stem}")
    runtime.setup()

    from traces_jax.host import run  # after set-up: nothing may touch JAX's devices before it

    complete = run.train(config, folder)
    print(f"run folder: {folder}")
    return cli.OK if complete else cli.STOPPED


def _read(given: Any) -> dict[str, Any]:
    """The experiment's settings. A file that could not be loaded arrives as an object that raises when touched."""
    try:
        return given.to_dict()
    except config_lib.ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  an experiment file is a user's program and may raise anything
        raise errors.UserError(f"--config cannot be loaded: {cli.one_line(error)}") from None


if __name__ == "__main__":
    cli.run(main)
