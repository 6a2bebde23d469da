"""Generates offline data: episodes of policies during training, with summed costs on both sides of the limit b.

One compiled program trains all behaviour policies in parallel. At several moments it records more episodes than needed,
and keeps those that fill the ranges of summed cost evenly. At most one block of episodes is in memory.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Iterator

import flax.struct
import h5py
import jax
import numpy as np
import rich.console
import rich.table

from traces_jax import config as config_lib
from traces_jax.config import Config, Lane
from traces_jax.core.keys import Stream
from traces_jax.core.learner import Learner, LearnerState
from traces_jax.host import errors, files, runtime
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import evaluation, progress

# Episodes recorded for each one that is kept.
_PLAYED = 3
# Bounds between the ranges of summed cost, as multiples of constraint.cost_limit; two ranges are within it.
_EDGES = np.asarray([0.2, 1.0, 2.0, 4.0])
# Higher than the cost of any episode; its square still fits into float32.
_NO_LIMIT = 1e9
# A note is printed if a label has a smaller share of the episodes than this.
_FEW = 0.1
# Rows in a chunk of the file. Chunks hold full rows, unlike h5py's default, because readers read episodes.
_ROWS = 1024


@flax.struct.dataclass
class Played:
    """Episodes of one lane.

    Attributes:
      steps: the arrays of the file, [T, B, ...]; steps after an episode's end belong to the next one.
      length: [B].
      total_return: [B].
      total_cost: [B].
      accepted: [B] whether the labeler accepts the full episode.
      sound: [B] whether the simulation stayed finite.
    """

    steps: dict[str, jax.Array]
    length: jax.Array
    total_return: jax.Array
    total_cost: jax.Array
    accepted: jax.Array
    sound: jax.Array


@dataclasses.dataclass(frozen=True)
class Block:
    """Episodes recorded at one moment with one level of noise.

    Attributes:
      iteration: finished iterations of training.
      noise: multiple of the policy's own.
      due: total number of episodes kept after this block.
    """

    iteration: int
    noise: float
    due: int


@flax.struct.dataclass
class Kept:
    """Statistics of the episodes in the file, [N]. lane: the lane of the policy."""

    lane: np.ndarray
    total_return: np.ndarray
    total_cost: np.ndarray
    accepted: np.ndarray


def collect(config: Config, path: pathlib.Path, count: int) -> Kept:
    """Trains, records, writes a file of `count` episodes, and prints a summary."""
    training = training_config(config)
    built = build_lib.build(training, behaviours(training))
    attributes = {
        "task": config.task,
        "config": config_lib.to_json(config),
        "versions": json.dumps(runtime.describe()["versions"]),
    }
    with (
        _new_file(path, attributes) as file,
        progress.Progress(training.iterations, training.iteration_steps * len(built.lanes)) as view,
    ):
        kept = _fill(built, file, view, count)
    rich.console.Console().print(table(kept, [lane.name for lane in built.lanes], config.task))
    if warning := rare_label(kept.accepted):
        print(warning, file=sys.stderr)
    return kept


def training_config(config: Config) -> Config:
    """The config with which the behaviour policies are trained."""
    settings = config.collect
    config_lib.check_iterations(config, "collect.steps", settings.steps)
    training = dataclasses.replace(
        config,
        steps=settings.steps,
        seeds=1,
        sweep="",
        method=dataclasses.replace(config.method, source="oracle", solver="ppo_lag"),
        # With a rate that decays to zero, the last moments would have nearly the same policies.
        ppo=dataclasses.replace(config.ppo, actor_lr_decay=False),
        run=dataclasses.replace(config.run, chunk=1),
    )
    if settings.moments > training.iterations + 1:
        raise config_lib.ConfigError(
            f"collect.moments={settings.moments} is not right: collect.steps={settings.steps} are "
            f"{training.iterations} iterations, with at most {training.iterations + 1} moments between them."
        )
    return training


def behaviours(config: Config) -> list[Lane]:
    """A lane for each limit and one without. Each has its own seed: otherwise all would be equal before training."""
    limits = [multiple * config.constraint.cost_limit for multiple in config.collect.limits]
    constrained = lambda limit: dataclasses.replace(  # noqa: E731
        config, constraint=dataclasses.replace(config.constraint, cost_limit=limit)
    )
    configs = {f"limit {limit:g}": constrained(limit) for limit in limits}
    configs["no limit"] = dataclasses.replace(
        constrained(_NO_LIMIT), lagrange=dataclasses.replace(config.lagrange, initial=0.0)
    )
    return [Lane(name, config.seed + number, own) for number, (name, own) in enumerate(configs.items())]


def plan(config: Config, lanes: int, count: int) -> tuple[list[Block], int]:
    """The blocks in order, and how many episodes each lane records in each of them."""
    settings = config.collect
    moments = [number * config.iterations // (settings.moments - 1) for number in range(settings.moments)]
    wanted = math.ceil(_PLAYED * count / (len(moments) * len(settings.noise) * lanes))
    # At most as many at a time as in training, so that they fit into memory.
    repeats = math.ceil(wanted / config.environment.count)
    order = [(moment, noise) for moment in moments for noise in settings.noise for _ in range(repeats)]
    blocks = [
        Block(iteration, noise, due=count * (number + 1) // len(order))
        for number, (iteration, noise) in enumerate(order)
    ]
    return blocks, math.ceil(wanted / repeats)


def choose(costs: np.ndarray, kept: np.ndarray, *, limit: float, count: int) -> np.ndarray:
    """Which candidates to keep. Each pick is from the range of summed cost that has the fewest episodes so far.

    Args:
      costs: [N] summed costs of the candidates. Within a range, earlier ones are picked first.
      kept: [M] summed costs of the episodes already kept.
      limit: b, which defines the ranges.
      count: how many to keep.

    Returns:
      Their indices in ascending order; all candidates if there are not enough.
    """
    ranges = [np.searchsorted(_EDGES * limit, values) for values in (costs, kept)]
    filled = np.bincount(ranges[1], minlength=len(_EDGES) + 1)
    waiting = {int(number): np.flatnonzero(ranges[0] == number).tolist() for number in np.unique(ranges[0])}
    chosen: list[int] = []
    while waiting and len(chosen) < count:
        emptiest = min(waiting, key=lambda number: filled[number])
        chosen.append(waiting[emptiest].pop(0))
        filled[emptiest] += 1
        if not waiting[emptiest]:
            del waiting[emptiest]
    return np.sort(np.asarray(chosen, int))


def play(
    learner: Learner,
    settings: Config,
    state: LearnerState,
    block: jax.Array,
    noise: jax.Array,
    count: int,
    *,
    limit: float,
) -> Played:
    """One lane: `count` environments, each until its first episode ends.

    block: [] selects the random numbers; noise: [] multiple of the policy's own; limit: the labeler's, not the
    behaviour policy's.
    """
    played = evaluation.noisy_episodes(
        learner,
        settings,
        state,
        Stream.COLLECT,
        block,
        count,
        limit=limit,
        noise=noise,
        watch=lambda state: state.pipeline_state.qpos,
    )
    transitions, truth = played.transitions, played.truth
    return Played(
        steps={
            "observations": transitions.observation,
            "next_observations": transitions.next_observation,
            "actions": transitions.action,
            "rewards": transitions.reward,
            "costs": truth.cost,
            "terminals": transitions.terminated > 0,
            "timeouts": transitions.truncated > 0,
            "qpos": truth.watched,
        },
        length=played.length,
        total_return=played.at_end(truth.episode_return),
        total_cost=played.at_end(truth.episode_cost),
        accepted=played.accepted > 0,
        sound=played.at_end(truth.broken) == 0,
    )


def table(kept: Kept, lanes: list[str], task: str) -> rich.table.Table:
    """A row for each behaviour policy and one for all."""
    view = rich.table.Table(title=f"{task}: episodes in the file; 10th, 50th and 90th percentiles of cost and return")
    view.add_column("")
    for column in ("episodes", "accepted", "cost", "return"):
        view.add_column(column, justify="right", no_wrap=True)
    rows = {name: kept.lane == number for number, name in enumerate(lanes)} | {"all": kept.lane >= 0}
    for number, (name, own) in enumerate(rows.items()):
        cells = [str(own.sum())]
        if own.any():
            cells.append(f"{100 * kept.accepted[own].mean():.0f} %")
            for values in (kept.total_cost, kept.total_return):
                cells.append("  ".join(f"{value:.1f}" for value in np.quantile(values[own], [0.1, 0.5, 0.9])))
        view.add_row(name, *cells, end_section=number == len(lanes) - 1)
    return view


def rare_label(accepted: np.ndarray) -> str:
    """A note if one of the two labels is rare; otherwise empty."""
    accepts, refuses = accepted.mean(), (~accepted).mean()
    if accepts < _FEW:
        return (
            f"only {100 * accepts:.0f} % of the episodes are accepted; lower collect.limits, or more collect.steps to "
            f"learn to keep them, would give more."
        )
    if refuses < _FEW:
        return (
            f"only {100 * refuses:.0f} % of the episodes are not accepted; more collect.steps, or higher "
            f"collect.limits, would give more."
        )
    return ""


def _fill(built: build_lib.Built, file: h5py.File, view: progress.Progress, count: int) -> Kept:
    """Trains, records and writes."""
    program, lanes = built.program, len(built.lanes)
    limit = built.config.constraint.cost_limit
    blocks, size = plan(built.config, lanes, count)

    def one_lane(settings: Config, state: LearnerState, block: jax.Array, noise: jax.Array) -> Played:
        return play(program.learner, settings, state, block, noise, size, limit=limit)

    compiled = jax.jit(program.map_lanes(one_lane, shared=2))
    kept = Kept(*(np.zeros(0, kind) for kind in (int, np.float32, np.float32, bool)))
    state, done = program.init(), 0
    view.begin(done)
    for number, block in enumerate(blocks):
        while done < block.iteration:
            state, rows = program.chunk(state, done, 1)
            done += 1
            rows = jax.device_get(rows)
            if not np.all(rows["finite"]):
                raise errors.UserError(f"a policy became non-finite in iteration {done}; try a smaller ppo.actor_lr.")
            view.update(done, rows)
        missing = block.due - len(kept.lane)
        if not missing:
            continue
        played = jax.device_get(compiled(program.settings, state, np.int32(number), np.float32(block.noise)))
        # Alternates between lanes; each block starts with another lane, so that none is preferred.
        sound = np.roll(np.flatnonzero(played.sound.T), -number)
        found = sound[choose(played.total_cost.T.ravel()[sound], kept.total_cost, limit=limit, count=missing)]
        episode, lane = np.divmod(found, lanes)
        for s, b in zip(lane, episode, strict=True):
            _append(file, {name: steps[s, : played.length[s, b], b] for name, steps in played.steps.items()})
        news = Kept(
            lane, *(values[lane, episode] for values in (played.total_return, played.total_cost, played.accepted))
        )
        kept = jax.tree.map(lambda old, new: np.concatenate([old, new]), kept, news)
    if len(kept.lane) < count:
        raise errors.UserError(
            f"--episodes={count} is too many: the simulator broke down in all but {len(kept.lane)} of those played."
        )
    return kept


@contextlib.contextmanager
def _new_file(path: pathlib.Path, attributes: dict[str, str]) -> Iterator[h5py.File]:
    """A file that gets its name when it is complete."""
    with files.beside(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update(attributes)
        yield file


def _append(file: h5py.File, steps: dict[str, np.ndarray]) -> None:
    """Appends an episode, [T, ...] by name."""
    for name, values in steps.items():
        if name not in file:
            shape = values.shape[1:]
            file.create_dataset(
                name, shape=(0, *shape), dtype=values.dtype, maxshape=(None, *shape), chunks=(_ROWS, *shape)
            )
        written = file[name]
        written.resize(len(written) + len(values), axis=0)
        written[len(written) - len(values) :] = values
