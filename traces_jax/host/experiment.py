"""The --config flag of the command lines: an experiment file with the command line's changes, as a checked config."""

import pathlib
from typing import Any

from absl import flags
from ml_collections import config_flags

from traces_jax import config as config_lib
from traces_jax.config import Config
from traces_jax.host import cli, errors


def path(flag: flags.FlagHolder) -> pathlib.Path:
    """Where the experiment file is."""
    if flag.value is None:
        raise config_lib.ConfigError(f"--{flag.name} is missing; give an experiment file such as experiments/ant.py.")
    found = pathlib.Path(config_flags.get_config_filename(flags.FLAGS[flag.name]))
    if not found.exists():
        raise errors.UserError(f"--{flag.name}={found} does not exist; experiments/ has examples.")
    return found


def read(flag: flags.FlagHolder) -> Config:
    """The experiment with its preset and the command line's changes, validated."""
    path(flag)  # A file that is missing has a sentence of its own.
    given = config_flags.get_override_values(flags.FLAGS[flag.name])
    return config_lib.from_dict(config_lib.with_preset(_settings(flag), given))


def _settings(flag: flags.FlagHolder) -> dict[str, Any]:
    """The experiment's settings. A file that could not be loaded arrives as an object that raises when touched."""
    try:
        return flag.value.to_dict()
    except config_lib.ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  an experiment file is a user's program and may raise anything
        raise errors.UserError(f"--{flag.name} cannot be loaded: {cli.one_line(error)}") from None
