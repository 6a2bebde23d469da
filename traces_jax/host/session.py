"""Training from Python, for instance from a notebook: what `python -m traces_jax.train` does, as functions."""

import os
import pathlib
import runpy
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections

from traces_jax import config as config_lib
from traces_jax.config import Config, presets
from traces_jax.host import errors, runtime, shipped

# What `train` understands as settings.
Settings: typing.TypeAlias = Config | ml_collections.ConfigDict | Mapping[str, Any] | str | os.PathLike[str]


def experiment(name: str | os.PathLike[str]) -> ml_collections.ConfigDict:
    """The settings of an experiment of this package, such as "ball_run", or of an experiment file.

    They can be changed before training: `config.ppo.clip = 0.1`. Unknown names are refused.
    """
    path = shipped.find(os.fspath(name))
    if not path.is_file():
        raise errors.UserError(f"experiment {os.fspath(name)!r} does not exist; {shipped.choices()}.")
    found = runpy.run_path(str(path))
    if "get_config" not in found:
        raise errors.UserError(f"{path} has no function get_config().")
    # Locked: a name that does not exist raises at once.
    return found["get_config"]().lock()


def train(config: Settings, run_dir: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Trains, or resumes a run that was stopped, and evaluates it. Returns the run folder.

    Configures JAX as the command does, unless this process has used its devices before: then it uses those there are.
    An interrupt saves the state, as Ctrl-C does on the command line, and is raised again; the same call resumes.

    Args:
      config: what `experiment` or `traces_jax.config.make` returned, or the name of an experiment, or its file.
      run_dir: the run folder. Default, for a name or a file: runs/<name>.

    Raises:
      traces_jax.ConfigError: one sentence about a setting.
      traces_jax.UserError: one sentence about the folder or the machine.
    """
    if isinstance(config, str | os.PathLike):
        run_dir = run_dir or pathlib.Path("runs") / shipped.find(os.fspath(config)).stem
        config = experiment(config)
    if run_dir is None:
        raise errors.UserError("run_dir is missing; give a folder such as runs/ant.")
    settings = _resolved(config)
    runtime.setup()

    from traces_jax.host.run import loop  # after set-up: nothing may touch JAX's devices before it

    with runtime.quiet():
        complete = loop.train(settings, pathlib.Path(run_dir))
    if not complete:
        raise KeyboardInterrupt
    return pathlib.Path(run_dir)


def _resolved(config: Config | ml_collections.ConfigDict | Mapping[str, Any]) -> Config:
    if isinstance(config, Config):
        return config
    tree = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else dict(config)
    return config_lib.from_dict(presets.apply(tree, ()))
