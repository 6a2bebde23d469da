"""What a written policy is: task, method, labels, evaluation, version."""

import pathlib
from typing import Any

from traces_jax.host import errors, files
from traces_jax.host.deploy.saved import Saved
from traces_jax.host.run import folder, metrics

_COUNTS = {"trajectories": "labels/trajectories", "single_labels": "labels/queries"}


def facts(saved: Saved, run: pathlib.Path, version: str) -> dict[str, Any]:
    """All that is known of a policy, as JSON values. version: of this package."""
    config, description = saved.lane.config, folder.description(run)
    return {
        "task": config.task,
        "method": f"{config.method.source} with {config.method.solver}",
        "run": run.name,
        "run_identity": folder.identity(run),
        "seed": saved.lane.seed,
        "iteration": saved.iteration,
        "iterations_of_run": saved.checkpoint,
        "satisfied_its_constraint_in_training": saved.satisfied,
        "cost_limit": float(config.constraint.cost_limit),
        "labels": _labels(run, saved),
        "evaluation": _evaluation(run, saved),
        "version": version,
        "trained_with": description.get("versions"),
        "command": description.get("command"),
    }


def page(about: dict[str, Any]) -> str:
    """The card to read, in Markdown."""
    labels, found = about["labels"], about["evaluation"]
    satisfied = {True: "yes", False: "no: it came nearest", None: "not recorded"}
    rows = {
        "task": about["task"],
        "method": about["method"],
        "seed": about["seed"],
        "iteration": f"{about['iteration']}, of a run of {about['iterations_of_run']}",
        "satisfied its constraint in training": satisfied[about["satisfied_its_constraint_in_training"]],
        "limit of an episode's summed cost": about["cost_limit"],
        "labels until then": _counted(labels["until_policy"]),
        "labels of the whole run": _counted(labels["of_run"]),
        "evaluation": "none of this policy" if found is None else _evaluated(found),
        "traces_jax": about["version"],
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    shapes = "\n".join(
        f"* {kind} `{name}`: {shape}" for kind in ("inputs", "outputs") for name, shape in about[kind].items()
    )
    memory = (
        "\n`memory` is zero at the start of an episode; give each step the `next_memory` of the one before.\n"
        if "memory" in about["inputs"]
        else ""
    )
    cost = (
        "`cost` is the true cost of the step before; at the start of an episode it is ignored.\n"
        if "cost" in about["inputs"]
        else ""
    )
    differences = "\n".join(
        f"* `{name}` differs from the policy by at most {value:.1e}"
        for name, value in about.get("largest_difference", {}).items()
    )
    return f"""# Policy for {about["task"]}

| | |
|---|---|
{table}

Observations are raw: their normalization is inside. The action is the mean action; the task clips it to its bounds.

{shapes}
{memory}{cost}
{differences}
"""


def _labels(run: pathlib.Path, saved: Saved) -> dict[str, dict[str, int] | None]:
    """Labels that the lane had asked for when the policy was made, and in the whole run; None if unknown."""
    found: dict[str, dict[str, int] | None] = {"until_policy": None, "of_run": None}
    path = run / "metrics.jsonl"
    if not path.is_file():
        return found
    if not saved.deployed.learner.source.learns:
        return dict.fromkeys(found, dict.fromkeys(_COUNTS, 0))
    for row in metrics.read(path):
        if row["lane"] != saved.lane.name or row["iteration"] >= saved.checkpoint:
            continue
        counts = {name: int(row.get(column) or 0) for name, column in _COUNTS.items()}
        found["of_run"] = counts
        if row["iteration"] < saved.iteration:
            found["until_policy"] = counts
    if found["of_run"] is not None and found["until_policy"] is None:
        found["until_policy"] = dict.fromkeys(_COUNTS, 0)
    return found


def _evaluation(run: pathlib.Path, saved: Saved) -> dict[str, Any] | None:
    """The lane's row of the run's evaluation, if that is of this policy."""
    try:
        found = files.read_json(run / "evaluation.json")
        row = next(row for row in found["lanes"] if row["lane"] == saved.lane.name)
        played = row.get("policy", row["iteration"])
        return {**row, "episodes": found["episodes"]} if played == saved.iteration else None
    except (errors.UserError, KeyError, TypeError, StopIteration):
        return None


def _counted(counts: dict[str, int] | None) -> str:
    return "unknown" if counts is None else f"{counts['trajectories']} trajectories ({counts['single_labels']} labels)"


def _evaluated(row: dict[str, Any]) -> str:
    text = (
        f"return {row['return']:.1f}, cost {row['cost']:.1f}, {100 * row['accepted']:.0f} % of {row['episodes']} "
        "episodes acceptable"
    )
    if certificate := row.get("certificate"):
        text += f"; {certificate['labels']} labels prove at least {100 * certificate['bound']:.0f} %"
    return text
