"""Train: python -m traces_jax.train --config ball_run --config.seeds=4 --run_dir runs/ball

--config is an experiment's name or file; --config.<path>=<value> changes one of its settings. The same command resumes
a run that was stopped. Press Ctrl-C to stop; the state is saved. From Python: traces_jax.train(config, run_dir).
"""

import pathlib
import sys
import textwrap
import types
from typing import Any

from absl import flags
from ml_collections import config_flags

from traces_jax import config as config_lib
from traces_jax.config import describe
from traces_jax.host import cli, experiment, help, hosts, runtime, session, shipped

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment: a name such as ball_run, or a file.")
_DISTRIBUTED = flags.DEFINE_boolean(
    "distributed",
    None,
    "Run together with the same command in other processes (docs/accelerators.md). Default: as the environment says.",
)
_LABELS = flags.DEFINE_enum(
    "labels", "wait", ["wait", "exit"], "Where people label: wait for their answers, or exit with code 75."
)
_RUN_DIR = flags.DEFINE_string("run_dir", None, "Folder of the run. Default: runs/<name of the experiment>.")
_LIST = flags.DEFINE_string("list", None, "Only print what the settings do: all, or those of a group (--list=ppo).")
_PRINT_CONFIG = flags.DEFINE_boolean("print_config", False, "Only print all settings of this run, as JSON.")


def main() -> int:
    """The command line."""
    if _LIST.value is not None:
        groups = describe.groups() if _LIST.value == "all" else [_LIST.value]
        print("\n\n".join(describe.page(group) for group in groups))
        return cli.OK
    config = experiment.read(_CONFIG)
    if _PRINT_CONFIG.value:
        print(config_lib.to_json(config), end="")
        return cli.OK
    folder = pathlib.Path(_RUN_DIR.value or f"runs/{experiment.path(_CONFIG).stem}")
    runtime.setup()
    hosts.join(_DISTRIBUTED.value)
    experiment.note_idle(_CONFIG, config, print)

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


def _settings() -> str:
    """The groups of settings and the experiments, for --help."""
    lines = [f"  {name:<18}  {sentence}" for name, sentence in describe.overview().items()]
    experiments = textwrap.fill(f"Experiments: {', '.join(shipped.names())}.", help.WIDTH)
    return "\n".join([experiments, "Settings (--list=GROUP):", *lines])


class _Train(types.ModuleType):
    """This module, which can be called: importing it puts it in the place of the function `traces_jax.train`."""

    def __call__(self, *args: Any, **kwargs: Any) -> pathlib.Path:
        return session.train(*args, **kwargs)


sys.modules[__name__].__class__ = _Train

if __name__ == "__main__":
    cli.run(main, more_help=_settings)
