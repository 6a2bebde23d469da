"""Evaluation of saved policies: fresh environments, mean actions, frozen statistics, true costs."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.table

from traces_jax import rollout
from traces_jax.config import Config
from traces_jax.host import build as build_lib
from traces_jax.keys import Stream, stream
from traces_jax.learner import Learner, LearnerState


def episodes(built: build_lib.Built, state: LearnerState, count: int) -> dict[str, np.ndarray]:
    """Plays `count` episodes with every lane's mean policy. Returns return, cost, length: [S, count]."""
    program = built.program

    def one_lane(settings: Config, state: LearnerState) -> rollout.Truth:
        return first_episodes(program.learner, settings, state, count)

    truth = jax.jit(program.over_lanes(one_lane))(program.settings, state)
    return {name: np.asarray(value) for name, value in jax.device_get(truth).items()}


def first_episodes(learner: Learner, settings: Config, state: LearnerState, count: int) -> dict[str, jax.Array]:
    """One lane: `count` environments, each until its first episode ends. Returns arrays [count]."""
    task = learner.task
    runner = rollout.start(task, stream(state.key, 0, Stream.EVALUATE), count)
    quiet = jnp.zeros((task.horizon, count, task.action_size))
    act = lambda observation, noise: learner.act(settings, state, observation, noise)  # noqa: E731
    _, _, truth = rollout.run(task, act, runner, quiet, stream(state.key, 1, Stream.EVALUATE))
    first = jnp.argmax(truth.ended, axis=0)
    pick = lambda values: jnp.take_along_axis(values, first[None], axis=0)[0]  # noqa: E731
    return {
        "return": pick(truth.episode_return), "cost": pick(truth.episode_cost), "length": pick(truth.episode_length)
    }


def summarize(result: dict[str, np.ndarray], lanes: list[str], limits: np.ndarray, settings: list[str]) -> dict:
    """Per lane means, and mean (population std) over the seeds of each setting."""
    per_lane = [
        {
            "lane": name,
            "return": float(result["return"][i].mean()),
            "cost": float(result["cost"][i].mean()),
            "accepted": float((result["cost"][i] <= limits[i]).mean()),
            "length": float(result["length"][i].mean()),
        }
        for i, name in enumerate(lanes)
    ]
    groups = []
    for setting in dict.fromkeys(settings):
        rows = [row for row, own in zip(per_lane, settings, strict=True) if own == setting]
        group: dict = {"setting": setting, "seeds": len(rows)}
        for key in ("return", "cost", "accepted", "length"):
            values = np.asarray([row[key] for row in rows])
            group[key] = {"mean": float(values.mean()), "std": float(values.std())}
        groups.append(group)
    return {"lanes": per_lane, "settings": groups}


def table(summary: dict, task: str, episodes_per_seed: int) -> rich.table.Table:
    """The result as a person reads it."""
    result = rich.table.Table(title=f"{task}: mean (std) over seeds, {episodes_per_seed} episodes each")
    for column in ("", "seeds", "return", "cost", "accepted"):
        result.add_column(column, justify="left" if not column else "right")
    for group in summary["settings"]:
        cells = [f"{group[key]['mean']:.1f} ({group[key]['std']:.1f})" for key in ("return", "cost")]
        accepted = f"{100 * group['accepted']['mean']:.0f} % ({100 * group['accepted']['std']:.0f})"
        result.add_row(group["setting"] or "all", str(group["seeds"]), *cells, accepted)
    return result


def evaluate_and_report(
    built: build_lib.Built, state: LearnerState, folder: pathlib.Path, *, iteration: int, count: int
) -> dict:
    """Evaluates, prints the table, saves evaluation.json and the raw episodes beside it."""
    result = episodes(built, state, count)
    names = [lane.name for lane in built.lanes]
    limits = np.asarray([lane.config.lagrange.cost_limit for lane in built.lanes])
    summary = summarize(result, names, limits, [name.partition(" ")[2] for name in names])
    summary = {"task": built.config.task, "iteration": iteration, "episodes": count, **summary}
    (folder / "evaluation.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    np.savez(folder / "evaluation.npz", lanes=np.asarray(names), **result)
    console = rich.console.Console()
    console.print(table(summary, built.config.task, count))
    return summary

