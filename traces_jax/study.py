"""Study: python -m traces_jax.study experiments/studies/main_table.py --tasks BallRun,CarRun --seeds 4 --jobs 2

Makes all runs of a study file, and the data and estimators they start from, and ends with a report. The same command
goes on with a study that was stopped or killed; what is done is not done again, also after a change of the file. Press
Ctrl-C to stop; everything that runs is saved. --status shows how far a study is, while it runs or later.
"""

import pathlib

from absl import flags

from traces_jax.host import cli, errors, shipped
from traces_jax.host.study import command

_TASKS = flags.DEFINE_list("tasks", [], "Tasks of the study, such as BallRun,CarRun. Default: all.")
_METHODS = flags.DEFINE_list("methods", [], "Methods of the study, such as traces. Default: all.")
_SEEDS = flags.DEFINE_integer("seeds", None, "Seeds of each row. Default: as the study says.")
_JOBS = flags.DEFINE_integer("jobs", None, "Most runs at a time. Default: all there is room for.")
_ENGINE = flags.DEFINE_enum("engine", "local", command.ENGINES, "Who runs them.")
_OUT = flags.DEFINE_string("out", None, "Folder. Default: studies/<name of the file>.", allow_override=True)
_STATUS = flags.DEFINE_boolean("status", False, "Only show how far the study is.")
_JSON = flags.DEFINE_boolean("json", False, "Show it as JSON.")
_RETRIES = flags.DEFINE_integer("retries", 1, "How often a step that fails is tried again.")
_CPUS = flags.DEFINE_integer("cpus", 1, "Cores of a run.")
_GPUS = flags.DEFINE_integer("gpus", 0, "GPUs of a run, for ray and slurm.")
_SHARED = flags.DEFINE_boolean("shared", True, "Whether Ray's workers see --out; else runs are copied back.")
_SLURM = flags.DEFINE_list("slurm", [], "Parameters of submitit, such as slurm_partition=gpu,timeout_min=240.")


def main(arguments: list[str]) -> int:
    """The command line. arguments: the study file."""
    if len(arguments) != 1:
        raise errors.UserError("one study is needed: a name such as smoke, or a file.")
    file = shipped.find_study(arguments[0])
    options = command.Options(
        out=pathlib.Path(_OUT.value or f"studies/{file.stem}"),
        tasks=tuple(_TASKS.value),
        methods=tuple(_METHODS.value),
        seeds=_SEEDS.value,
        jobs=_JOBS.value,
        engine=_ENGINE.value,
        retries=_RETRIES.value,
        cpus=_CPUS.value,
        gpus=_GPUS.value,
        shared=_SHARED.value,
        slurm=command.parameters(_SLURM.value),
    )
    if _STATUS.value or _JSON.value:
        return command.status(file, options, as_json=_JSON.value)
    return command.run(file, options)


if __name__ == "__main__":
    cli.run(main, takes_arguments=True)
