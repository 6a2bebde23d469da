"""Safe reinforcement learning in one compiled program.

  config = traces_jax.experiment("ball_run")   the settings of an experiment, to be changed at will
  run = traces_jax.train(config, "runs/ball")  trains, or resumes; returns the run folder
  policy = traces_jax.load(run)                the trained policy
  action = policy(observation)                 its memory of the episode is kept; policy.reset() begins another one

Importing the package loads none of it: these names load what they need when they are first used.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from traces_jax.host.deploy.policy import Estimator, Policy, load
    from traces_jax.host.errors import ConfigError, OwnError, UserError
    from traces_jax.host.session import experiment, train

__version__ = "0.1.0"

__all__ = ["experiment", "train", "load", "Policy", "Estimator", "ConfigError", "OwnError", "UserError"]

_MODULES = {
    "traces_jax.host.deploy.policy": ("Estimator", "Policy", "load"),
    "traces_jax.host.errors": ("ConfigError", "OwnError", "UserError"),
    "traces_jax.host.session": ("experiment", "train"),
}
# Those that are named in the documents: `traces_jax.config.make`, `traces_jax.tasks.make`.
_PACKAGES = ("config", "tasks")


def __getattr__(name: str) -> typing.Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    if name in _PACKAGES:
        return importlib.import_module(f"traces_jax.{name}")
    raise AttributeError(f"module 'traces_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
