"""The run folder: its identity, its config, and a lock so that only one process writes to it.

config.json     the resolved config             metrics.jsonl   a row for each lane and iteration
run.json        identity, command, versions     tensorboard/    the same for TensorBoard
checkpoints/    the newest full states          best/           the best state of each lane within the limit
evaluation.json results of `evaluate`           evaluation.npz  every episode of it
evaluations/    of one seed, of other states    diagnostics.npz episodes step by step, with their credits
run.lock        held by the process that trains labels.db       clips and answers of people who label
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from traces_jax import config as config_lib
from traces_jax.config import Config
from traces_jax.host import errors, files, locks

# Groups that do not affect what a run computes (logging, or work before the run). They may change on resume.
_FREE_TO_CHANGE = ("run", "collect", "pretrain")
_LOCK = "run.lock"
_CONFIG = "config.json"
_DESCRIPTION = "run.json"


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Creates and locks the folder. The system releases the lock when the process dies."""
    _check_ours(folder)
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locks.alone(folder / _LOCK, lambda holder: _in_use(folder, holder)):
        with files.writing(folder):
            _clean(folder)
        yield


def _in_use(folder: pathlib.Path, holder: str) -> errors.UserError:
    return errors.UserError(f"run folder {folder} is in use by {holder}; wait for it, or choose another --run_dir.")


def _check_ours(folder: pathlib.Path) -> None:
    """Refuses a non-empty folder that is not a run. A process killed at its start leaves only a lock."""
    if not folder.exists() or (folder / _CONFIG).exists():
        return
    if not folder.is_dir() or not all(path.name == _LOCK or _is_left_over(path.name) for path in folder.iterdir()):
        raise errors.UserError(f"run folder {folder} exists and is not a run; choose another --run_dir.")


def _clean(folder: pathlib.Path) -> None:
    """Removes incomplete files of killed processes."""
    for path in folder.iterdir():
        if _is_left_over(path.name):
            files.remove(path)


def _is_left_over(name: str) -> bool:
    """Whether a name is that of an incomplete file. Earlier versions had one temporary name for all processes."""
    return files.is_temporary(name) or name == f"{_CONFIG}.tmp"


def prepare(config: Config, folder: pathlib.Path, say: Callable[[str], None]) -> None:
    """Writes config.json, or checks that the folder has the same config. `steps` may be larger than before."""
    path = folder / _CONFIG
    if not path.exists():
        files.write_text(path, config_lib.to_json(config))
        return
    theirs = load_config(folder)
    longer = dataclasses.replace(theirs, steps=max(theirs.steps, config.steps))
    difference = _first_difference(config_lib.to_dict(longer), config_lib.to_dict(config))
    if difference:
        raise errors.UserError(
            f"run folder {folder} was made with {difference}; choose another --run_dir or the same settings."
        )
    if longer.steps > theirs.steps:
        files.write_text(path, config_lib.to_json(dataclasses.replace(theirs, steps=longer.steps)))
        decay = "; ppo.actor_lr, which falls to 0 over the run, rises again" if config.ppo.actor_lr_decay else ""
        say(f"note: the run is extended from {theirs.steps} to {longer.steps} steps{decay}")


def describe(folder: pathlib.Path, description: dict[str, Any]) -> str:
    """Writes run.json when a run begins. Returns the run's identity."""
    known = identity(folder)
    if known is None:
        known = uuid.uuid4().hex
    files.write_text(folder / _DESCRIPTION, json.dumps({"identity": known, **description}, indent=2) + "\n")
    return known


def description(folder: pathlib.Path) -> dict[str, Any]:
    """The content of run.json; empty if it is missing or damaged."""
    try:
        found = _read(folder / _DESCRIPTION)
    except errors.UserError:
        return {}
    return found if isinstance(found, dict) else {}


def identity(folder: pathlib.Path) -> str | None:
    """The identity of a run; None for runs of earlier versions."""
    known = description(folder).get("identity")
    return known if isinstance(known, str) else None


def load_config(folder: pathlib.Path) -> Config:
    """The config of a run folder."""
    path = folder / _CONFIG
    tree = _read(path)
    if not isinstance(tree, dict):
        raise errors.UserError(f"{path} is damaged: it holds no settings.")
    return config_lib.from_saved(tree)


def _read(path: pathlib.Path) -> Any:
    if not os.path.lexists(path):
        raise errors.UserError(f"{path.parent} is not a run folder: it has no {path.name}.")
    return files.read_json(path)


def _first_difference(theirs: dict, ours: dict, path: str = "") -> str:
    for name, value in theirs.items():
        if path + name in _FREE_TO_CHANGE:
            continue
        if isinstance(value, dict):
            inner = _first_difference(value, ours[name], f"{path}{name}.")
            if inner:
                return inner
        elif _plain(value) != _plain(ours[name]):
            return f"{path}{name}={value!r}, not {ours[name]!r}"
    return ""


def _plain(value):
    return list(value) if isinstance(value, tuple) else value
