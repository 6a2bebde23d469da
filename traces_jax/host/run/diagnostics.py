"""Quality of an estimator on the policy's own noisy episodes, as tables, and the episodes step by step for plots."""

import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.progress
import rich.table

from traces_jax.config import Config
from traces_jax.core.keys import Stream
from traces_jax.core.learner import Learner, LearnerState
from traces_jax.host import errors, files
from traces_jax.host.report import credits
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import evaluation


def place(evaluated: pathlib.Path) -> pathlib.Path:
    """The path of the diagnostics that belong to an evaluation: see `evaluation.place`."""
    own = evaluation.is_closing(evaluated)
    return evaluated.with_name("diagnostics.npz" if own else f"{evaluated.name}-diagnostics.npz")


def diagnose(
    built: build_lib.Built, state: LearnerState, path: pathlib.Path, *, iterations: np.ndarray, count: int
) -> None:
    """Runs `count` episodes of every lane, prints the estimator's metrics on them, and saves them to `path`.

    iterations: [S] finished iterations of the states.
    """
    if not built.task.has_cost:
        raise errors.UserError(f"diagnostics are not possible: {built.task.name} has no cost to compare credits with.")
    console = rich.console.Console()
    result = collect(built, state, count, console)
    names = [lane.name for lane in built.lanes]
    limits = np.asarray([lane.config.constraint.cost_limit for lane in built.lanes])
    # A scalar, unless the limit differs between lanes.
    limit = limits if np.ptp(limits) else limits[0]
    files.write_arrays(path, lanes=np.asarray(names), limit=limit, iteration=iterations.max(), **result)
    console.print(table(result, names, built.config.task))


def collect(
    built: build_lib.Built, state: LearnerState, count: int, console: rich.console.Console
) -> dict[str, np.ndarray]:
    """Runs `count` episodes with every lane's policy and its noise.

    Returns:
      return, length, accepted, probability: [S, count]; cost, credit: [S, count, T], NaN after an episode's end.
      Without an estimator there is neither probability nor credit.
    """
    program = built.program
    # At most as many at a time as in training, so that they fit into memory.
    size = min(count, built.config.environment.count)

    def one_lane(settings: Config, state: LearnerState, block: jax.Array) -> dict[str, jax.Array]:
        return noisy_episodes(program.learner, settings, state, block, size)

    play = jax.jit(program.map_lanes(one_lane, shared=1))
    blocks = [
        jax.device_get(play(program.settings, state, np.int32(block)))
        for block in rich.progress.track(
            range(math.ceil(count / size)),
            "diagnostics",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    ]
    return {name: np.concatenate([rows[name] for rows in blocks], axis=1)[:, :count] for name in blocks[0]}


def noisy_episodes(
    learner: Learner, settings: Config, state: LearnerState, block: jax.Array, count: int
) -> dict[str, jax.Array]:
    """One lane: `count` environments, each until its first episode ends. block: [] selects the random numbers.

    Returns arrays [count] and [count, T], see `collect`.
    """
    played = evaluation.noisy_episodes(
        learner, settings, state, Stream.DIAGNOSE, block, count, limit=settings.constraint.cost_limit
    )
    transitions, truth = played.transitions, played.truth
    said = evaluation.credits(learner, settings, state, transitions.observation, transitions.action)
    inside = jnp.arange(learner.task.horizon)[:, None] < played.length
    steps = {"cost": truth.cost} | ({} if said is None else {"credit": said.credit})
    return {
        "return": played.at_end(truth.episode_return),
        "length": played.length,
        "accepted": played.accepted,
        **({} if said is None else {"probability": jnp.exp(played.at_end(said.log_probability))}),
        **{name: jnp.where(inside, values, jnp.nan).T for name, values in steps.items()},
    }


def summarize(accepted: np.ndarray, probability: np.ndarray, cost: np.ndarray, credit: np.ndarray) -> dict[str, float]:
    """The estimator's metrics on episodes. accepted, probability: [N]; cost, credit: [N, T], NaN after the end.

    Returns:
      accepted: acceptance rate of the labeler; probability: mean of p, the estimated probability of acceptance; right:
      accuracy of p >= 1/2; calibration_error: expected calibration error of p; credit_where_none: mean credit of steps
      without cost divided by that of all steps, NaN if there are none or no credit at all.
    """
    free, mean = credit[cost == 0], np.nanmean(credit)
    return {
        "accepted": float(accepted.mean()),
        "probability": float(probability.mean()),
        "right": float(((probability >= 0.5) == (accepted > 0)).mean()),
        "calibration_error": credits.reliability(probability, accepted).error,
        "credit_where_none": float(free.mean() / mean) if free.size and mean else math.nan,
    }


def table(result: dict[str, np.ndarray], lanes: list[str], task: str) -> rich.table.Table:
    """A row for each lane, and one for all seeds of each setting together."""
    settings = [name.partition(" ")[2] for name in lanes]
    pooled = {setting: [i for i, own in enumerate(settings) if own == setting] for setting in settings}
    rows = {name: [i] for i, name in enumerate(lanes)} | {setting or "all": own for setting, own in pooled.items()}
    episodes = result["return"].shape[1]
    view = rich.table.Table(title=f"{task}: {episodes} episodes of each seed, with the policy's noise")
    view.add_column("", overflow="fold")
    columns = ["cost", "accepted"]
    if "credit" in result:
        columns += ["estimated", "accuracy", "calibration\nerror", "credit where\nno cost"]
    for column in columns:
        view.add_column(column, justify="right", no_wrap=True)
    percent = lambda share: f"{100 * share:.0f} %"  # noqa: E731
    for number, (name, own) in enumerate(rows.items()):
        take = functools.partial(_pool, result, own)
        cells = [f"{np.nansum(take('cost'), axis=-1).mean():.1f}"]
        if "credit" in result:
            found = summarize(*(take(key) for key in ("accepted", "probability", "cost", "credit")))
            cells += [percent(found[key]) for key in ("accepted", "probability", "right")]
            cells += [f"{found[key]:.2f}" for key in ("calibration_error", "credit_where_none")]
        else:
            cells.append(percent(take("accepted").mean()))
        view.add_row(name, *cells, end_section=number == len(lanes) - 1)
    return view


def _pool(result: dict[str, np.ndarray], lanes: list[int], name: str) -> np.ndarray:
    """The episodes of several lanes concatenated, [N, ...]."""
    values = result[name][lanes]
    return values.reshape(-1, *values.shape[2:])
