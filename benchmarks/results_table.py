"""Rows for docs/results.md from run folders, of one setting or of several: python -m benchmarks.results_table runs/*

Prints three Markdown tables: a row for each task and setting beside the paper's figures; return, cost and acceptance of
each seed; and the last tenth of training, with the policy's noise. Results are those of evaluation.json. A certificate
is printed where evaluation.json has one. Notes on missing or damaged files go to the error output.
"""

import argparse
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from traces_jax.host import errors, files
from traces_jax.host.report import groups, published, read, statistics, tables
from traces_jax.host.report.groups import Group
from traces_jax.host.report.read import Lane
from traces_jax.host.report.tables import NONE, Cell, Table

_TENTH = {
    "cost": "episode/cost",
    "accepted": "episode/accepted",
    "p^": "estimate/probability",
    "multiplier": "constraint/multiplier",
}


def results(grouped: Sequence[Group]) -> Table:
    """A row for each group, beside the paper's."""
    head = ["task", "seeds", "steps", "wall time", "labels", "return", "cost", "accepted", "certificate", "paper"]
    rows = []
    for group in grouped:
        costs = group.scores("cost")
        within = bool(costs.size and costs.mean() <= group.limit)
        steps = max((lane.rows["steps"].max() for lane in group.lanes if lane.rows), default=math.nan)
        rows.append([
            Cell(_name(group)), Cell(str(len(group.lanes))), Cell(f"{steps:,.0f}"), Cell(_wall_time(group.lanes)),
            _cell(group.labels(), "labelled"), _cell(group.scores("return"), "return", bold=within),
            _cell(costs, "cost", bold=within), _cell(group.scores("accepted"), "accepted"),
            _cell(_certificates(group.lanes), "accepted"), Cell(_paper(group)),
        ])  # fmt: skip
    return Table("Results", head, rows)


def seeds(grouped: Sequence[Group]) -> Table:
    """A row for each evaluated seed."""
    names = ("return", "cost", "accepted")
    rows = [
        [
            Cell(_name(group)),
            Cell(str(lane.seed)),
            *(_cell(lane.episodes[name].mean(keepdims=True), name) for name in names),
        ]
        for group in grouped
        for lane in group.lanes
        if lane.episodes
    ]
    return Table("Seed by seed", ["task", "seed", *names], rows)


def last_tenth(grouped: Sequence[Group]) -> Table:
    """The last tenth of training. A seed's swing is the standard deviation of its cost over these iterations."""
    rows = []
    for group in grouped:
        found = {name: np.asarray([_tail(lane, path).mean() for lane in group.lanes]) for name, path in _TENTH.items()}
        found["swing"] = np.asarray([_tail(lane, "episode/cost").std() for lane in group.lanes])
        cells = [_cell(found[name], name) for name in ("cost", "swing", "accepted", "p^", "multiplier")]
        rows.append([Cell(_name(group)), *cells])
    return Table("Last tenth of training", ["task", "cost", "swing", "accepted", "p^", "multiplier"], rows)


def _tail(lane: Lane, path: str) -> np.ndarray:
    """The values of the last tenth of the iterations; those without an ended episode, or a query, have none."""
    values = lane.rows.get(path, np.full(1, np.nan))
    tail = values[-math.ceil(len(values) / 10) :]
    kept = tail[np.isfinite(tail)]
    return kept if kept.size else np.full(1, np.nan)


def _cell(values: np.ndarray, name: str, *, bold: bool = False) -> Cell:
    """Mean, and standard deviation over seeds if there are several. values: [S]."""
    values = values[np.isfinite(values)]
    if not values.size:
        return Cell(NONE)
    spread = statistics.Spread(float(values.mean()), float(values.std()))
    fine = name in ("p^", "multiplier")
    text = f"{spread.mean:.2f} ({spread.std:.2f})" if fine else tables.spread_text(spread, name)
    return Cell(text if values.size > 1 else text.rpartition(" (")[0], bold=bold)


def _name(group: Group) -> str:
    setting = group.name if group.source != "traces" else group.setting
    return ", ".join(part for part in (groups.short(group.task), setting) if part)


def _paper(group: Group) -> str:
    """Return / cost of the paper, with its labels. TraCeS there starts from an estimator fitted to offline data."""
    found = next(iter(published.PAPER.get(group.source, {"": {}}).values())).get(group.task)
    if found is None or group.limit != published.LIMIT:
        return NONE
    text = " / ".join(f"{mean} ({std})" for mean, std in (found.returns, found.cost))
    return f"{text}, {found.labels[0]:.0f} labelled" if found.labels else text


def _wall_time(lanes: Sequence[Lane]) -> str:
    """Of training, mean over folders. A folder's seeds are trained side by side; a resumed run's clock starts anew."""
    clocks = {lane.run: lane.rows["seconds"] for lane in lanes if "seconds" in lane.rows}
    if not clocks:
        return NONE
    steps = [(clock, np.diff(clock, prepend=0)) for clock in clocks.values()]
    seconds = np.mean([np.where(step < 0, clock, step).sum() for clock, step in steps])
    minutes, rest = divmod(round(float(seconds)), 60)
    text = f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return text if len(clocks) == 1 else f"{len(clocks)} x {text}"


def _certificates(lanes: Sequence[Lane]) -> np.ndarray:
    """The certified share of acceptable trajectories of each lane whose evaluation has one, [S]."""
    found = []
    for lane in lanes:
        try:
            evaluated: Any = files.read_json(pathlib.Path(lane.run) / "evaluation.json")
            found += [
                float(row["certificate"]["bound"])
                for row in evaluated["lanes"]
                if row["lane"] == f"seed={lane.seed} {lane.swept}".strip() and "certificate" in row
            ]
        except (errors.UserError, KeyError, TypeError, ValueError):
            continue
    return np.asarray(found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Prints rows for docs/results.md.")
    parser.add_argument("runs", nargs="+", help="run folders")
    lanes: list[Lane] = []
    for folder in parser.parse_args().runs:
        found, notes = read.read(pathlib.Path(folder), folder)
        lanes += found
        for note in notes:
            print(f"note: {folder}: {note}.", file=sys.stderr)
    if not lanes:
        parser.exit(2, "results_table: there is no run in these folders; run folders of train would be right.\n")
    grouped, repeated = groups.make(lanes)
    for folder, note in repeated:
        print(f"note: {folder}: {note}.", file=sys.stderr)
    print("\n".join(tables.markdown(table) for table in (results(grouped), seeds(grouped), last_tenth(grouped))))


if __name__ == "__main__":
    main()
