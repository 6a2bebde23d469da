"""From rows to steps: which commands, in which order, under which names.

A step's name ends with a digest of what it does, so that it is found again if nothing has changed, and is another step
if anything has. All paths in commands are relative to the study's folder, which may be moved.

study.json      what the report has to know       report/      the report
steps/NAME/     experiment.py, log.txt, outcome.json and the lock of a step
runs/NAME/      a run folder                      data/NAME.hdf5, estimators/NAME/   what runs start from
"""

import collections
import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from traces_jax import config as config_lib
from traces_jax.config import presets
from traces_jax.host import errors
from traces_jax.host.study import read
from traces_jax.host.study.rows import Row, Study

# Letters of a digest: enough for many thousand steps.
_DIGITS = 8


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
      module: of this package: collect, pretrain or train.
      arguments: of its command line, besides --config.
      file: settings of its experiment file that are not the defaults, dotted path -> value.
      output: what it makes.
      needs: names of steps that must be done before.
      row: of a training, the row it belongs to.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    file: Mapping[str, Any]
    output: str
    needs: tuple[str, ...] = ()
    row: Row | None = None

    @property
    def folder(self) -> str:
        """Where what is known of the step is kept."""
        return f"steps/{self.name}"


def make(study: Study, tasks: Collection[str], methods: Collection[str], seeds: int | None) -> dict[str, Step]:
    """All steps by their names, each after those it needs. tasks, methods: which rows; all if empty."""
    for flag, wanted, known in (
        ("tasks", tasks, {_task_name(row) for row in study.rows}),
        ("methods", methods, {row.method for row in study.rows}),
    ):
        for name in wanted:
            if name not in known:
                raise config_lib.unknown(f"name of --{flag} in this study", name, sorted(known))
    chosen = [
        row for row in study.rows if (not tasks or _task_name(row) in tasks) and (not methods or row.method in methods)
    ]
    if not chosen:
        raise errors.UserError("no row of the study has one of these tasks and one of these methods; see its file.")
    files = {task: _differences(read.experiment(task)) for task in {row.task: None for row in chosen}}
    steps: dict[str, Step] = {}
    for row in chosen:
        own = _steps(row, files[row.task], row.seeds if seeds is None else seeds)
        # Data and estimators are shared; what comes first is kept.
        steps |= {step.name: step for step in own if step.name not in steps}
    _check_names(chosen)
    return steps


def _steps(row: Row, file: Mapping[str, Any], seeds: int) -> list[Step]:
    """What one row needs."""
    if seeds < 1:
        raise errors.UserError(f"seeds={seeds} of {_where(row)} is not right: it must be at least 1.")
    source, _, solver = row.method.partition("+")
    settings = {**row.settings, "method.source": source, **({"method.solver": solver} if solver else {})}
    try:
        _check(file, settings)
    except config_lib.ConfigError as error:
        raise errors.UserError(f"{_where(row)}: {error}") from None
    before = _offline(row, file, settings) if row.warm else []
    if before:
        settings["estimator.init"] = before[-1].output
    stem = "-".join(_slug(part) for part in (_task_name(row), row.method, row.name) if part)
    runs = []
    for seed in range(seeds):
        flags = _flags({**settings, "seed": seed, "seeds": 1})
        name = f"{stem}-seed-{seed}-{_digest('train', file, flags)}"
        output = f"runs/{name}"
        arguments = (*flags, f"--run_dir={output}")
        needs = tuple(step.name for step in before[-1:])
        runs.append(Step(name, "train", arguments, file, output, needs, row))
    return [*before, *runs]


def _offline(row: Row, file: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Step]:
    """The steps that make the estimator of a warm start: what matters to them, and nothing else, tells them apart."""
    steps: list[Step] = []
    for module, output in (("collect", "data/{}.hdf5"), ("pretrain", "estimators/{}")):
        own_file = {path: value for path, value in file.items() if config_lib.matters_to(module, path)}
        own = {path: value for path, value in settings.items() if config_lib.matters_to(module, path)}
        source = f"--data={steps[-1].output}" if steps else f"--episodes={row.episodes}"
        # What is there belongs to the same step, which was stopped before it could say that it was done.
        arguments = (*_flags(own), source, "--overwrite")
        name = f"{_slug(_task_name(row))}-{module}-{_digest(module, own_file, arguments)}"
        out = output.format(name)
        needs = tuple(step.name for step in steps)
        steps.append(Step(name, module, (*arguments, f"--out={out}"), own_file, out, needs))
    return steps


def _task_name(row: Row) -> str:
    return read.experiment_path(row.task).stem if row.task.endswith(".py") else row.task


def _where(row: Row) -> str:
    return f"row {row.title!r} of {row.task}"


def _check(file: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuses what no run would take, before any begins."""
    for path in settings:
        config_lib.check_path(path)
        if path in ("seed", "seeds", "estimator.init"):
            raise config_lib.ConfigError(f"{path} cannot be set; a row says so with its seeds and with warm.")
    tree = config_lib.to_dict(config_lib.Config())
    for path, value in {**file, **settings}.items():
        group, _, name = path.rpartition(".")
        (tree[group] if group else tree)[name] = value
    config_lib.from_dict(presets.apply(tree, settings.keys()))


def _differences(tree: dict[str, Any]) -> dict[str, Any]:
    """What an experiment says besides the defaults. Seeds are a row's matter."""
    return {
        path: tree[group][name] if group else tree[name]
        for path in config_lib.changed(tree)
        for group, _, name in [path.rpartition(".")]
        if path not in ("seed", "seeds")
    }


def _flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"--config.{path}={_text(value)}" for path, value in sorted(settings.items()))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _slug(text: str) -> str:
    """Letters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9.=_]+", "_", text).strip("_")


def _check_names(rows: Sequence[Row]) -> None:
    """Two rows of a task with one title would be one line of the report."""
    counts = collections.Counter((row.task, row.title) for row in rows)
    for (task, title), count in counts.items():
        if count > 1:
            raise errors.UserError(f"{count} rows of {task} are called {title!r}; names that differ would be right.")
