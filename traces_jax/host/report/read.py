"""Reads run folders for a report. Missing or damaged files become notes; they never abort a report."""

import array
import collections
import dataclasses
import json
import math
import os
import pathlib
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from traces_jax import config as config_lib
from traces_jax.host import errors
from traces_jax.host.data import arrays
from traces_jax.host.report import credits
from traces_jax.host.run import metrics

CURVES = (
    "episode/return",
    "episode/cost",
    "episode/accepted",
    "constraint/multiplier",
    "labels/trajectories",
    "estimate/right",
    "estimate/jensen_gap",
)
# Maximum bytes of a file by suffix; files of real runs are far smaller.
_LARGEST = {".json": 1 << 20, ".jsonl": 1 << 32, ".npz": 1 << 32}
_MOST_NAMES = 3  # in a note
# Of the trajectories selected for labels, and of all new ones.
PICKED = "query/cv_picked"
UNCERTAINTY = (PICKED, "query/cv_pool")
STAGE = "stage/"
_WANTED = {"iteration", "steps", "seconds", "estimate/probability", *CURVES, *UNCERTAINTY}


@dataclasses.dataclass(frozen=True)
class Lane:
    """One seed of a run under one setting.

    Attributes:
      run: name of its folder in the report.
      source: method.source of its config; with another solver than PPO-Lagrangian, "source+solver".
      swept: the part of the lane's name that is not its seed.
      settings: dotted path -> value, including the lane's swept values.
      limit: the hidden threshold of the summed cost.
      rows: name -> [I], a number for each iteration, NaN where there is none; "iteration" and "steps" always.
      episodes: name -> [N], raw episodes of the main evaluation, with 1 or 0 for "accepted"; empty without one.
      diagnosis: of its saved credits, if any.
      label: name of its setting in a study; None outside of studies.
    """

    run: str
    task: str
    source: str
    seed: int
    swept: str
    settings: Mapping[str, Any]
    limit: float
    rows: Mapping[str, np.ndarray]
    episodes: Mapping[str, np.ndarray]
    diagnosis: credits.Diagnosis | None
    label: str | None = None


def read(folder: pathlib.Path, run: str) -> tuple[list[Lane], list[str]]:
    """The lanes of a run folder that have data, and notes for the reader.

    run: its name in the report. Without lanes, the last note says why.
    """
    notes: list[str] = []
    try:
        tree = _config(folder, notes.append)
        rows = _rows(folder / "metrics.jsonl", notes.append)
        evaluation = _evaluation(folder, notes.append)
        episodes = evaluation.episodes
        diagnoses, diagnosed = _diagnostics(folder / "diagnostics.npz", notes.append)
        names = list(dict.fromkeys([*rows, *episodes]))
        if not names:
            raise errors.UserError("no run yet, it has neither rows nor an evaluation")
        lanes = [
            _lane(run, name, tree, rows.get(name, {}), episodes.get(name, {}), diagnoses.get(name)) for name in names
        ]
    except errors.UserError as error:
        return [], [*notes, str(error)]
    _check_progress(
        {name: columns for name, columns in rows.items() if name not in evaluation.diverged},
        _planned(tree),
        notes.append,
    )
    _check_evaluation(evaluation, diagnosed, rows, tree, notes.append)
    _check_others(folder / "evaluations", notes.append)
    return lanes, notes


def printable(text: str) -> str:
    """Text without unprintable characters: line ends, terminal codes, undecodable bytes."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _is_there(path: pathlib.Path) -> bool:
    """Whether a file can be read. Refuses files that are too large, and anything else, such as pipes that never end."""
    try:
        found = path.stat()
    except OSError:
        # A link that leads nowhere, or in a circle, is there and is no file.
        if not os.path.lexists(path):
            return False
        raise errors.UserError(f"{path.name} cannot be reached") from None
    if not stat.S_ISREG(found.st_mode):
        raise errors.UserError(f"{path.name} is not a file")
    if found.st_size > _LARGEST[path.suffix]:
        raise errors.UserError(f"{path.name} is larger than {_LARGEST[path.suffix] >> 20} MB")
    return True


def _config(folder: pathlib.Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Dotted path -> value. Not through `Config`, so that folders of other versions can be read."""
    if not os.path.isdir(folder):
        raise errors.UserError("not a folder" if os.path.lexists(folder) else "does not exist")
    try:
        there = _is_there(folder / "config.json")
    except errors.UserError as error:
        raise errors.UserError(f"not shown, {error}") from None
    if not there:
        raise errors.UserError("not a run folder, it has no config.json")
    try:
        tree = _flatten(config_lib.updated(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    except (OSError, ValueError, AttributeError, RecursionError):
        raise errors.UserError("not shown, its config.json is damaged") from None
    if not isinstance(tree.get("task"), str):
        raise errors.UserError("not shown, its config.json names no task")
    if "method.source" not in tree:
        # The field is as old as the second method.
        note("config.json has no method.source, taken for a run with the true cost")
    return {"method.source": "oracle", **tree}


def _flatten(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        own = path + printable(name)
        if isinstance(value, dict):
            flat |= _flatten(value, f"{own}.")
        else:
            flat[own] = printable(value) if isinstance(value, str) else value
    return flat


def _lane(
    run: str,
    name: str,
    tree: Mapping[str, Any],
    rows: Mapping[str, np.ndarray],
    episodes: Mapping[str, np.ndarray],
    diagnosis: credits.Diagnosis | None,
) -> Lane:
    """name: as config.lanes makes it, such as "seed=3 ppo.clip=0.1"."""
    own, _, swept = name.partition(" ")
    solver = str(tree.get("method.solver", "ppo_lag"))
    source = str(tree["method.source"]) + ("" if solver == "ppo_lag" else f"+{solver}")
    try:
        seed = int(own.removeprefix("seed="))
        settings = {**tree, **{path: float(value) for path, value in (part.split("=") for part in swept.split())}}
    except ValueError:
        raise errors.UserError(f"not shown, lane {name!r} is not of the form seed=0 field=value") from None
    try:
        limit = float(settings["constraint.cost_limit"])
    except (KeyError, TypeError, ValueError):
        raise errors.UserError("not shown, its config.json has no cost limit") from None
    if episodes and "accepted" not in episodes:
        episodes = {**episodes, "accepted": episodes["cost"] <= limit}
    return Lane(run, str(tree["task"]), source, seed, swept, settings, limit, rows, episodes, diagnosis)


def _rows(path: pathlib.Path, note: Callable[[str], None]) -> dict[str, dict[str, np.ndarray]]:
    """Lane -> name -> [I]."""
    try:
        if not _is_there(path):
            note(f"no {path.name}, so no curves")
            return {}
        found = _columns(metrics.read(path, note))
    except OSError:
        note(f"{path.name} cannot be read, so no curves")
        return {}
    except errors.UserError as error:
        note(f"{error}, so no curves")
        return {}
    if not found:
        note(f"{path.name} has no rows, so no curves")
    return found


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """Lane -> name -> [I]. Appends to typed arrays row by row: Python objects would take many times the memory."""
    found: dict[str, dict[str, array.array]] = {}
    count: collections.Counter[str] = collections.Counter()
    for row in rows:
        lane = printable(row["lane"])
        own = found.setdefault(lane, {})
        for name, value in row.items():
            if name in _WANTED or name.startswith(STAGE):
                column = own.setdefault(name, array.array("d"))
                _fill(column, count[lane])
                column.append(math.nan if value is None else value)
        count[lane] += 1
    for lane, own in found.items():
        for column in own.values():
            _fill(column, count[lane])
    return {lane: {name: np.asarray(column) for name, column in own.items()} for lane, own in found.items()}


def _fill(column: array.array, length: int) -> None:
    """Pads with NaN for rows without a value."""
    column.extend([math.nan] * (length - len(column)))


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """The main evaluation of a run.

    Attributes:
      episodes: lane -> name -> [N]: return, cost, length and, except in older files, accepted.
      iteration: number of finished iterations, if known.
      diverged: lane -> the iteration in which it became non-finite, for those that did.
    """

    episodes: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)
    iteration: int | None = None
    diverged: Mapping[str, int] = dataclasses.field(default_factory=dict)


def _evaluation(folder: pathlib.Path, note: Callable[[str], None]) -> _Evaluation:
    path = folder / "evaluation.npz"
    try:
        if not _is_there(path):
            note("no evaluation.npz, so not in the tables")
            return _Evaluation()
        given = _arrays(path, ("return", "cost", "length"), optional=("accepted",))
        names = [name for name in ("return", "cost", "length", "accepted") if name in given]
        lanes = [printable(str(lane)) for lane in given["lanes"]]
        shape = (len(lanes), given["cost"].size // max(1, len(lanes)))
        if not given["cost"].size or any(given[name].shape != shape for name in names):
            raise errors.UserError("evaluation.npz holds arrays of other shapes than [lanes, episodes]")
        if not all(np.isfinite(given[name]).all() for name in names):
            raise errors.UserError("evaluation.npz holds episodes that are not finite")
        if "accepted" in given and not (np.isin(given["accepted"], (0, 1)) | np.isnan(given["accepted"])).all():
            raise errors.UserError("evaluation.npz holds labels other than 0 and 1")
        iteration = _whole(path, given.get("iteration", np.asarray(_saved_iteration(folder))), ())
        diverged = _whole(path, given.get("diverged", np.full(len(lanes), -1)), (len(lanes),))
    except errors.UserError as error:
        note(f"{error}, so not in the tables")
        return _Evaluation()
    return _Evaluation(
        {lane: {name: given[name][row] for name in names} for row, lane in enumerate(lanes)},
        None if iteration < 0 else int(iteration),
        {lane: int(end) for lane, end in zip(lanes, diverged, strict=True) if end >= 0},
    )


def _whole(path: pathlib.Path, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Iterations in a file; below 0 where there is none."""
    if values.shape != shape or values.dtype.kind not in "iu":
        raise errors.UserError(f"{path.name} holds iterations that are no whole numbers")
    return values


def _saved_iteration(folder: pathlib.Path) -> int:
    """The iteration as evaluation.json has it, where older versions wrote it; -1 if it has none."""
    try:
        if _is_there(folder / "evaluation.json"):
            found = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
            return min(max(int(found["iteration"]), -1), 2**31)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, errors.UserError):
        pass
    return -1


def _diagnostics(path: pathlib.Path, note: Callable[[str], None]) -> tuple[dict[str, credits.Diagnosis], int | None]:
    """Lane -> diagnosis of its credits; and the number of finished iterations, if known."""
    try:
        if not _is_there(path):
            return {}, None
        given = _arrays(path, ("accepted", "cost", "limit"), optional=("probability",))
        if "credit" not in given:
            # Such is the file of a run with the true cost.
            return {}, None
        cost, credit, accepted = given["cost"], given["credit"], given["accepted"]
        if cost.ndim != 3 or credit.shape != cost.shape or accepted.shape != cost.shape[:2] or not cost.size:
            raise errors.UserError("diagnostics.npz holds arrays of other shapes than [lanes, episodes, steps]")
        # Files of earlier versions have none: all estimators were those of TraCeS.
        probability = given.get("probability", np.exp(-np.nansum(credit, axis=2)))
        if probability.shape != accepted.shape or not ((probability >= 0) & (probability <= 1)).all():
            raise errors.UserError("diagnostics.npz holds probabilities below 0 or above 1, or of other episodes")
        if len(given["lanes"]) != len(cost) or given["limit"].shape not in ((), (len(cost),)):
            raise errors.UserError("diagnostics.npz holds another number of lanes than names of them")
        if (credit < 0).any() or (np.isfinite(cost) != np.isfinite(credit)).any():
            raise errors.UserError("diagnostics.npz holds credits below 0 or not finite")
        if not all(np.isfinite(values).all() for values in (cost[:, :, 0], accepted, given["limit"])):
            raise errors.UserError("diagnostics.npz holds costs or labels that are not finite")
        iteration = int(_whole(path, given.get("iteration", np.asarray(-1)), ()))
    except errors.UserError as error:
        note(f"{error}, so no pictures of credits")
        return {}, None
    limits = np.broadcast_to(given["limit"], len(cost))
    found = {
        printable(str(lane)): credits.diagnose(
            cost[row], credit[row], probability[row], accepted[row], float(limits[row])
        )
        for row, lane in enumerate(given["lanes"])
    }
    return found, None if iteration < 0 else iteration


def _arrays(path: pathlib.Path, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """All arrays of a file. Checks that `names` and `optional` are numeric, and that lanes is a list of names."""
    try:
        given = arrays.read(path, "run")
    except errors.UserError:
        raise errors.UserError(f"{path.name} cannot be read") from None
    for name in (*names, "lanes", *(name for name in optional if name in given)):
        if name not in given:
            raise errors.UserError(f"{path.name} holds no array {name!r}")
        if given[name].dtype.kind not in ("U" if name == "lanes" else "fiub"):
            raise errors.UserError(f"{path.name} holds an array {name!r} of {given[name].dtype.name}")
    if given["lanes"].ndim != 1:
        raise errors.UserError(f"{path.name} holds no list of lanes")
    return given


def _planned(tree: Mapping[str, Any]) -> int | None:
    """Planned iterations of the run, if its config has them."""
    try:
        return tree["steps"] // (tree["environment.count"] * tree["environment.steps"])
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def _check_progress(
    rows: Mapping[str, Mapping[str, np.ndarray]], planned: int | None, note: Callable[[str], None]
) -> None:
    lengths = [len(columns["steps"]) for columns in rows.values()]
    if not lengths:
        return
    fewest, most = min(lengths), max(lengths)
    whole = f" of {planned}" if planned else ""
    if fewest < most:
        note(f"seeds of unequal length, {fewest} to {most}{whole} iterations; curves are of those that are left")
    elif planned and most < planned:
        note(f"not finished, {most}{whole} iterations")


def _check_evaluation(
    evaluation: _Evaluation,
    diagnosed: int | None,
    rows: Mapping[str, Mapping[str, np.ndarray]],
    tree: Mapping[str, Any],
    note: Callable[[str], None],
) -> None:
    """Notes if results are missing or not of the newest state. diagnosed: finished iterations, if known."""
    episodes = evaluation.episodes
    for lane, iteration in evaluation.diverged.items():
        note(f"{lane} became non-finite in iteration {iteration} and is shown, and counted, as it was before")
    without = [name for name in rows if episodes and name not in episodes]
    if without:
        note(f"no evaluation of {', '.join(without)}")
    going = [columns["iteration"] for name, columns in rows.items() if name not in evaluation.diverged]
    last = max((int(iterations.max()) + 1 for iterations in going), default=None)
    if evaluation.iteration is not None and last is not None and evaluation.iteration != last:
        note(f"evaluated after {evaluation.iteration} iterations, though there are rows of {last}")
    if diagnosed is not None and last is not None and diagnosed != last:
        note(f"pictures of credits are of the state after {diagnosed} iterations, though there are rows of {last}")
    if tree.get("labels.early_end") == "violating" and any("accepted" not in own for own in episodes.values()):
        lengths = np.concatenate([own["length"] for own in episodes.values()])
        early = int((lengths < lengths.max()).sum())
        if early:
            note(
                "evaluation.npz is of an older version, episodes count as accepted by their cost alone, though "
                f"{early} of {lengths.size} ended early"
            )


def _check_others(folder: pathlib.Path, note: Callable[[str], None]) -> None:
    """Notes evaluations of single seeds, other iterations or fewer episodes, which are not results of the run.

    Diagnostics are next to the evaluation they belong to, under its name.
    """
    try:
        names = sorted(
            {printable(path.stem.removesuffix("-diagnostics")) for path in folder.iterdir() if path.suffix == ".npz"}
        )
    except OSError:
        return
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        note(f"other evaluations are not shown: {', '.join(names[:_MOST_NAMES])}{more}")
