"""Run folders as a report needs them. What is missing or damaged becomes a note; nothing here ends a report."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from traces_jax import config as config_lib
from traces_jax.host import arrays, errors, metrics
from traces_jax.host.report import credits

CURVES = (
    "episode/return",
    "episode/cost",
    "episode/accepted",
    "constraint/multiplier",
    "labels/trajectories",
    "estimate/right",
    "estimate/jensen_gap",
)
UNCERTAINTY = {"query/cv_picked": "picked", "query/cv_pool": "all"}
STAGE = "stage/"


@dataclasses.dataclass(frozen=True)
class Lane:
    """One seed of a run under one setting.

    Attributes:
      run: what the report calls its folder.
      source: method.source of its config.
      swept: the part of the lane's name that is not its seed.
      settings: dotted path -> value, with what the lane sweeps.
      limit: the hidden threshold of the summed cost.
      rows: name -> [I], a number for each iteration, NaN where there is none; "steps" always.
      episodes: name -> [N], raw episodes of the evaluation; empty without one.
      diagnosis: what its saved credits say, if there are any.
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


def read(folder: pathlib.Path, run: str) -> tuple[list[Lane], list[str]]:
    """The lanes of a run folder that have anything to show, and what a reader should know of it.

    run: what the report calls it. Without lanes, the last note says why.
    """
    notes: list[str] = []
    try:
        tree = _config(folder, notes.append)
        rows = _rows(folder / "metrics.jsonl", notes.append)
        episodes = _evaluation(folder / "evaluation.npz", notes.append)
        diagnoses = _diagnostics(folder / "diagnostics.npz", notes.append)
        names = list(dict.fromkeys([*rows, *episodes]))
        if not names:
            raise errors.UserError("no run yet, it has neither rows nor an evaluation")
        lanes = [
            _lane(run, name, tree, rows.get(name, {}), episodes.get(name, {}), diagnoses.get(name)) for name in names
        ]
    except errors.UserError as error:
        return [], [*notes, str(error)]
    _check_progress(rows, _planned(tree), notes.append)
    without = [name for name in names if episodes and name not in episodes]
    if without:
        notes.append(f"no evaluation of {', '.join(without)}")
    return lanes, notes


def _config(folder: pathlib.Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Dotted path -> value. Not through `Config`, so that folders of other versions can be read."""
    if not folder.is_dir():
        raise errors.UserError("not a folder" if folder.exists() else "does not exist")
    try:
        tree = _flatten(config_lib.updated(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    except FileNotFoundError:
        raise errors.UserError("not a run folder, it has no config.json") from None
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
        flat |= _flatten(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
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
    source = str(tree["method.source"])
    try:
        seed = int(own.removeprefix("seed="))
        settings = {**tree, **{path: float(value) for path, value in (part.split("=") for part in swept.split())}}
    except ValueError:
        raise errors.UserError(f"not shown, lane {name!r} is not of the form seed=0 field=value") from None
    try:
        limit = float(settings["constraint.cost_limit"])
    except (KeyError, TypeError, ValueError):
        raise errors.UserError("not shown, its config.json has no cost limit") from None
    return Lane(run, str(tree["task"]), source, seed, swept, settings, limit, rows, episodes, diagnosis)


def _rows(path: pathlib.Path, note: Callable[[str], None]) -> dict[str, dict[str, np.ndarray]]:
    """Lane -> name -> [I]."""
    found: dict[str, list[dict[str, Any]]] = {}
    wanted: dict[str, bool] = {}
    count = 0
    try:
        for row in metrics.read(path):
            own = found.setdefault(str(row["lane"]), [])
            for name in row:
                if name not in wanted:
                    wanted[name] = name in ("steps", *CURVES, *UNCERTAINTY) or name.startswith(STAGE)
            own.append({name: row[name] for name in row if wanted[name]})
            count += 1
        if _line_count(path) > count:
            note(f"line {count + 1} of metrics.jsonl is cut short, curves end there")
        elif not count:
            note("metrics.jsonl is empty, so no curves")
        return {lane: _columns(rows) for lane, rows in found.items()}
    except FileNotFoundError:
        note("no metrics.jsonl, so no curves")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        note("metrics.jsonl is damaged, so no curves")
    return {}


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: np.asarray([row.get(name) for row in rows], dtype=float) for name in names}
    if not np.isfinite(columns["steps"]).all():
        raise ValueError("rows without steps")
    return columns


def _line_count(path: pathlib.Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _evaluation(path: pathlib.Path, note: Callable[[str], None]) -> dict[str, dict[str, np.ndarray]]:
    """Lane -> name -> [N]."""
    if not path.exists():
        note("no evaluation.npz, so not in the tables")
        return {}
    try:
        given = _arrays(path, ("return", "cost", "length"))
        shape = (len(given["lanes"]), given["cost"].size // max(1, len(given["lanes"])))
        names = ("return", "cost", "length")
        if not given["cost"].size or any(given[name].shape != shape for name in names):
            raise errors.UserError("holds arrays of other shapes than [lanes, episodes]")
        if not all(np.isfinite(given[name]).all() for name in names):
            raise errors.UserError("holds episodes that are not finite")
    except errors.UserError as error:
        note(f"evaluation.npz {error}, so not in the tables")
        return {}
    return {str(lane): {name: given[name][row] for name in names} for row, lane in enumerate(given["lanes"])}


def _diagnostics(path: pathlib.Path, note: Callable[[str], None]) -> dict[str, credits.Diagnosis]:
    """Lane -> what its credits say."""
    if not path.exists():
        return {}
    try:
        given = _arrays(path, ("accepted", "cost", "limit"))
        if "credit" not in given:
            # Such is the file of a run with the true cost.
            return {}
        cost, credit, accepted = given["cost"], given["credit"], given["accepted"]
        if cost.ndim != 3 or credit.shape != cost.shape or accepted.shape != cost.shape[:2] or not cost.size:
            raise errors.UserError("holds arrays of other shapes than [lanes, episodes, steps]")
        if len(given["lanes"]) != len(cost) or given["limit"].shape not in ((), (len(cost),)):
            raise errors.UserError("holds another number of lanes than names of them")
        if (credit < 0).any() or (np.isfinite(cost) != np.isfinite(credit)).any():
            raise errors.UserError("holds credits below 0 or not finite")
        if not all(np.isfinite(values).all() for values in (cost[:, :, 0], accepted, given["limit"])):
            raise errors.UserError("holds costs or labels that are not finite")
    except errors.UserError as error:
        note(f"diagnostics.npz {error}, so no pictures of credits")
        return {}
    limits = np.broadcast_to(given["limit"], len(cost))
    return {
        str(lane): credits.diagnose(cost[row], credit[row], accepted[row], float(limits[row]))
        for row, lane in enumerate(given["lanes"])
    }


def _arrays(path: pathlib.Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """All arrays of a file; those of `names` hold numbers, and lanes is a list of names."""
    try:
        given = arrays.read(path, "run")
    except errors.UserError:
        raise errors.UserError("cannot be read") from None
    for name in (*names, "lanes"):
        if name not in given:
            raise errors.UserError(f"holds no array {name!r}")
        if given[name].dtype.kind not in ("U" if name == "lanes" else "fiub"):
            raise errors.UserError(f"holds an array {name!r} of {given[name].dtype.name}")
    if given["lanes"].ndim != 1:
        raise errors.UserError("holds no list of lanes")
    return given


def _planned(tree: Mapping[str, Any]) -> int | None:
    """Iterations of the whole run, if its config tells."""
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
