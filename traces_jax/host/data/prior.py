"""Saved estimators: the output of `pretrain`, and all that a run may start from.

A folder of `pretrain`:

  estimator.json  the config it was fitted with, test metrics, versions
  estimator.npz   weights, Adam's moments, statistics of observations
  store.npz       labelled trajectories to start a run's store with
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from traces_jax import config as config_lib
from traces_jax import sources
from traces_jax.config import Config
from traces_jax.core import normalize, optimize
from traces_jax.feedback.trajectories import Ring, Trajectories
from traces_jax.host import errors, files
from traces_jax.host.data import archives, arrays, import_torch
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import restore
from traces_jax.sources import Prior
from traces_jax.tasks import Task

DESCRIPTION = "estimator.json"
_RIGHT = "none, a folder of pretrain or of a run, or a .pt file would be right"


@dataclasses.dataclass(frozen=True)
class Saved:
    """An estimator of this package with its config. prior: NumPy arrays, not yet on a device."""

    config: Config
    task: Task
    source: sources.Labelled
    prior: Prior

    def prepare(self, inputs: jax.Array) -> jax.Array:
        """The estimator's inputs [..., F] from raw inputs [..., F]."""
        assert self.prior.statistics is not None, "all of ours have them"
        return self.source.prepare(self.config, self.prior.statistics, inputs)


def load(config: Config, task: Task, say: Callable[[str], None]) -> Prior | None:
    """The estimator given by estimator.init, checked against the config and its task; None for "none"."""
    name = config.estimator.init
    if name == "none":
        return None
    path = pathlib.Path(name)
    if not sources.learns(config):
        raise errors.UserError(
            f"estimator.init={name} is not right with method.source={config.method.source}, which has no estimator; "
            f"none would be right."
        )
    if path.is_dir():
        saved = read(path, None, say)
        _check(path, saved, config, task, say)
        return saved.prior
    if not path.exists():
        raise errors.UserError(f"estimator.init={name} does not exist; {_RIGHT}.")
    return _from_torch(path, config, task)


def read(folder: pathlib.Path, seed: int | None, say: Callable[[str], None]) -> Saved:
    """The estimator in a folder of `pretrain` or in a run folder (of the given seed, or the first)."""
    if not (folder / DESCRIPTION).exists():
        return _from_run(folder, seed, say)
    if seed is not None:
        raise errors.UserError(f"--seed={seed} is for run folders; {folder} has one estimator.")
    config = _described(folder)
    task = build_lib.make_task(config, build_lib.choose_physics("auto", jax.default_backend()))
    source = sources.learned(config, task)
    fitted = jax.eval_shape(functools.partial(source.fresh, config), jax.random.key(0))
    statistics = jax.eval_shape(lambda: normalize.init((task.observation_size,)))
    found = _unnamed(folder / "estimator.npz", {"fitted": fitted, "statistics": statistics})
    rows = _rows(folder / "store.npz", task, len(source.ends(config)))
    return Saved(config, task, source, Prior(found["fitted"], found["statistics"], rows))


def save(folder: pathlib.Path, config: Config, prior: Prior, found: Mapping[str, Any]) -> None:
    """Writes a folder of `pretrain`, atomically. found: further entries of estimator.json."""
    description = {"kind": config.method.source, "task": config.task, **found, "config": config_lib.to_dict(config)}
    fitted = jax.device_get({"fitted": prior.fitted, "statistics": prior.statistics})
    with files.folder_beside(folder) as new:
        files.write_text(new / DESCRIPTION, json.dumps(description, indent=2) + "\n")
        files.write_arrays(new / "estimator.npz", **_named(fitted))
        files.write_arrays(new / "store.npz", **_named(prior.rows))


def check_out(folder: pathlib.Path, *, overwrite: bool) -> None:
    """Refuses a folder with other content, before any work is done for it. An estimator may be overwritten."""
    if folder.exists() and not (folder / DESCRIPTION).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise errors.UserError(f"--out={folder} exists and is not an estimator; choose another folder.")
    if (folder / DESCRIPTION).exists() and not overwrite:
        raise arrays.exists(folder)
    files.check_can_write(folder)


def _from_run(folder: pathlib.Path, seed: int | None, say: Callable[[str], None]) -> Saved:
    loaded = restore.load(folder, "latest", seed, say)
    source = loaded.built.program.learner.source
    if not isinstance(source, sources.Labelled):
        trained = loaded.built.config.method.source
        raise errors.UserError(f"run {folder} has no estimator: it was trained with method.source={trained}.")
    known = (loaded.state.source.fitted, loaded.state.normalizers.observation, loaded.state.source.store)
    fitted, statistics, store = jax.tree.map(lambda leaf: np.asarray(leaf[0]), known)
    prior = Prior(fitted, statistics, _oldest_first(store))
    return Saved(loaded.built.lanes[0].config, loaded.built.task, source, prior)


def _oldest_first(store: Ring) -> Trajectories:
    """The rows of a ring, oldest first, preceded by the empty slots."""
    order = (np.arange(store.rows.count) + store.written) % store.rows.count
    return jax.tree.map(lambda leaf: leaf[order], store.rows)


def _from_torch(path: pathlib.Path, config: Config, task: Task) -> Prior:
    try:
        found = import_torch.load(path)
    except import_torch.TorchFileError as error:
        raise errors.UserError(f"estimator.init={error}") from None
    if found.features != task.observation_size + task.action_size:
        raise errors.UserError(
            f"estimator.init={path} reads {found.features} features of a step; {config.task} has "
            f"{task.observation_size} of observation and {task.action_size} of action."
        )
    tree = config_lib.to_dict(config)
    wrong = {name: value for name, value in sources.published(found.params).items() if _at(tree, name) != value}
    if wrong:
        ours = ", ".join(f"{name}={_text(_at(tree, name))}" for name in wrong)
        wanted = ", ".join(_text(value) for value in wrong.values())
        raise errors.UserError(f"estimator.init={path} is not right with {ours}; {wanted} would be right.")
    return Prior(fitted=jax.device_get(optimize.init(found.params)), statistics=None, rows=None)


def _at(tree: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path."""
    group, name = path.split(".")
    return tree[group][name]


def _check(path: pathlib.Path, saved: Saved, config: Config, task: Task, say: Callable[[str], None]) -> None:
    sizes = [(one.observation_size, one.action_size, one.horizon) for one in (saved.task, task)]
    if sizes[0] != sizes[1]:
        theirs, ours = (f"{o} features of observation, {a} of action, {t} steps" for o, a, t in sizes)
        raise errors.UserError(
            f"estimator.init={path} is for {saved.config.task} ({theirs}); {config.task} has others ({ours})."
        )
    for lane in config_lib.lanes(config):
        for name, theirs, ours in _differences(("method.source", *saved.source.fitted_with), saved, lane.config):
            raise errors.UserError(
                f"estimator.init={path} was fitted with {name}={_text(theirs)}, not {_text(ours)}; "
                f"choose the same, or another estimator."
            )
    if saved.config.task != config.task:
        say(f"note: {path} was fitted to {saved.config.task}, not {config.task}")
    for name, theirs, _ in _differences(saved.source.noted, saved, config):
        say(f"note: {path} was fitted with {name}={theirs}")


def _differences(paths: Iterable[str], saved: Saved, config: Config) -> Iterator[tuple[str, Any, Any]]:
    """Path, saved value and value of this config, of the settings that differ."""
    trees = [config_lib.to_dict(one) for one in (saved.config, config)]
    for path in paths:
        theirs, ours = (_at(tree, path) for tree in trees)
        if theirs != ours:
            yield path, theirs, ours


def _text(value: Any) -> str:
    """A value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _described(folder: pathlib.Path) -> Config:
    path = folder / DESCRIPTION
    found = files.read_json(path)
    if not isinstance(found, dict) or "config" not in found:
        raise errors.UserError(f"{path} is damaged: it does not say what the estimator was fitted with.")
    return config_lib.from_saved(found["config"])


def _named(tree: Any) -> dict[str, np.ndarray]:
    """The leaves by path, such as fitted.params.layers.0.input_kernel."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def _unnamed(path: pathlib.Path, like: Any) -> Any:
    """The tree whose leaves `_named` wrote. like: its shapes and dtypes."""
    given = _read(path)
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for place, shape in leaves:
        name = jax.tree_util.keystr(place, simple=True, separator=".")
        if name not in given or given[name].shape != shape.shape or given[name].dtype != shape.dtype:
            raise errors.UserError(f"{path} is damaged: {name} must be {shape.dtype} {list(shape.shape)}.")
        if not np.all(np.isfinite(given[name])):
            raise errors.UserError(f"{path} is damaged: {name} holds numbers that are not finite.")
        found.append(given[name])
    return jax.tree.unflatten(structure, found)


def _rows(path: pathlib.Path, task: Task, prefixes: int) -> Trajectories:
    count = np.atleast_1d(_read(path).get("length", np.zeros(0))).shape[0]
    features = task.observation_size + task.action_size
    return _unnamed(
        path,
        Trajectories(
            inputs=jax.ShapeDtypeStruct((count, task.horizon, features), np.float32),  # type: ignore[arg-type]
            length=jax.ShapeDtypeStruct((count,), np.int32),  # type: ignore[arg-type]
            labels=jax.ShapeDtypeStruct((count, prefixes), np.float32),  # type: ignore[arg-type]
            mask=jax.ShapeDtypeStruct((count, prefixes), bool),  # type: ignore[arg-type]
        ),
    )


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        return arrays.load(path)
    except archives.ArchiveError as error:
        raise errors.UserError(f"{path} {error}; pretrain again.") from None
