"""The --config flag: an experiment file with the command line's changes, as a validated config."""

import pathlib
from collections.abc import Callable
from typing import Any

from absl import flags
from ml_collections import config_flags

from traces_jax import config as config_lib
from traces_jax.config import Config, presets
from traces_jax.host import cli, errors, shipped


def path(flag: flags.FlagHolder) -> pathlib.Path:
    """The path of the experiment file."""
    if flag.value is None:
        raise config_lib.ConfigError(f"--{flag.name} is missing; {shipped.choices()}.")
    found = pathlib.Path(config_flags.get_config_filename(flags.FLAGS[flag.name]))
    if not found.exists():
        raise errors.UserError(f"--{flag.name}={found} does not exist; {shipped.choices()}.")
    return found


def read(flag: flags.FlagHolder) -> Config:
    """The experiment with its preset and the command line's changes, validated."""
    path(flag)  # A missing file has its own error.
    return config_lib.from_dict(presets.apply(_settings(flag), _given(flag)))


def note_idle(flag: flags.FlagHolder, config: Config, say: Callable[[str], None]) -> None:
    """Prints, in one line, the settings that were given but have no effect on this training run.

    The groups `collect` and `pretrain` of an experiment file are for other commands and are not mentioned.
    """
    in_file = [path for path in config_lib.changed(_settings(flag)) if not path.startswith(("collect.", "pretrain."))]
    idle = config_lib.without_effect(config)
    by_reason: dict[str, list[str]] = {}
    for path in dict.fromkeys([*_given(flag), *in_file]):
        if path in idle:
            by_reason.setdefault(idle[path], []).append(path)
    if by_reason:
        named = [f"{', '.join(paths)} ({reason})" for reason, paths in by_reason.items()]
        say(f"note: without effect in this run: {'; '.join(named)}")


def _given(flag: flags.FlagHolder) -> dict[str, Any]:
    """The values given on the command line, by dotted path."""
    return config_flags.get_override_values(flags.FLAGS[flag.name])


def _settings(flag: flags.FlagHolder) -> dict[str, Any]:
    """The experiment's settings. If the file could not be loaded, the flag's value raises on access."""
    try:
        return flag.value.to_dict()
    except config_lib.ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  an experiment file is a user's program and may raise anything
        raise errors.UserError(f"--{flag.name} cannot be loaded: {cli.one_line(error)}") from None
