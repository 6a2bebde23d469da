"""Episodes that span iterations: staggered starts, and what is kept of the episodes that are still open.

A rollout that is shorter than an episode ends in the middle of most of them. What came before the next rollout is then
needed in three places: the estimator's memory and the sums of credits so far, which every environment keeps, and the
steps themselves, without which nobody could label an episode. Only the tracked environments keep their steps.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.config import Config
from traces_jax.core.rollout import RunnerState, Truth
from traces_jax.feedback import trajectories
from traces_jax.feedback.trajectories import Cuts


@flax.struct.dataclass
class Past:
    """The last steps of K tracked environments: a ring over time, so that a rollout is written in one piece.

    Attributes:
      inputs: [R, K, F] raw observation joined with the action.
      cost: [R, K] true cost, for a labeler that knows it.
      watched: [R, K, ...] output of the learner's `watch`; None without `watch`.
    """

    inputs: jax.Array
    cost: jax.Array
    watched: Any


@flax.struct.dataclass
class Open:
    """What came before the next rollout in the episodes that are open.

    Attributes:
      length: [B] steps; 0 where an episode is about to begin.
      memory: [B, ...] the source's memory; None for a source without.
      sums: [B] by name, of numbers that the source sums over an episode.
      past: the steps of tracked environments.
    """

    length: jax.Array
    memory: jax.Array | None
    sums: dict[str, jax.Array]
    past: Past


# --- Starts.


def elapsed(config: Config, horizon: int) -> np.ndarray:
    """How much of its time limit the first episode of each environment has already used up, [B] steps.

    Spread evenly, separately over the environments that explore and those that play the mean action: so both have
    about as many ends in every iteration.
    """
    mean = config.mean_environments
    groups = (mean, config.environment.count - mean)
    return np.concatenate([np.arange(size) * horizon // max(size, 1) for size in groups]).astype(np.int32)


def stagger(runner: RunnerState, steps: np.ndarray) -> RunnerState:
    """Environments at their starts, whose first episodes have already used up `steps` [B] of their time limit.

    They end as truncations. They are shorter than others, so they are neither measured nor labelled.
    """
    info = {**runner.environment.info, "steps": jnp.asarray(steps, jnp.float32)}
    environment = dataclasses.replace(runner.environment, info=info)
    return dataclasses.replace(runner, environment=environment, shortened=jnp.asarray(steps > 0))


# --- Sizes.


def tracked(config: Config) -> np.ndarray:
    """The environments whose steps are kept, [K]: spread evenly over all."""
    count = config.environment.count
    kept = min(config.pool.tracked, count)
    return np.arange(kept) * count // kept


def most_ends(environments: int, steps: int, horizon: int, *, early: bool) -> int:
    """How many episodes of as many environments can end within so many steps of each.

    As many as fit, and one more for each of the two groups that `elapsed` spreads. early: if episodes can end early,
    twice as many.
    """
    return (2 if early else 1) * (math.ceil(environments * steps / horizon) + 2)


def replayed(horizon: int) -> int:
    """Most steps of an open episode."""
    return max(horizon - 1, 1)


def ring_steps(steps: int, horizon: int) -> int:
    """Size R of the ring over time: an open episode and a rollout, in whole rollouts."""
    return steps * math.ceil((replayed(horizon) + steps) / steps)


def init(
    config: Config,
    horizon: int,
    features: int,
    *,
    memory: jax.Array | None,
    summed: Iterable[str],
    watched: Any,
) -> Open | None:
    """All episodes are about to begin; None if they never span iterations.

    memory: [B, ...] of new episodes; summed: names of sums; watched: shapes and dtypes of a step's `watch`.
    """
    if not config.spans:
        return None
    count, shape = config.environment.count, (ring_steps(config.environment.steps, horizon), len(tracked(config)))
    return Open(
        length=jnp.zeros((count,), jnp.int32),
        memory=memory,
        sums={name: jnp.zeros((count,)) for name in summed},
        past=Past(
            inputs=jnp.zeros((*shape, features)),
            cost=jnp.zeros(shape),
            watched=jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), watched),
        ),
    )


# --- The past.


def write(past: Past, steps: Past, iteration: jax.Array) -> Past:
    """Adds a rollout's steps [T, K, ...]. iteration: [] of the rollout, the same for all lanes."""
    place = _place(past, steps.cost.shape[0], iteration)
    return jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, place, 0), past, steps)


def finished(
    past: Past, config: Config, steps: Past, truth: Truth, iteration: jax.Array, places: int, horizon: int
) -> tuple[Past, Cuts, Past]:
    """Adds a rollout and cuts out the tracked episodes that ended in it, with their steps before it.

    steps: [T, B, ...] of all environments; iteration: [] of the rollout; places: N.
    Returns the past, the episodes [N] and their steps [N, horizon, ...].
    """
    which = tracked(config)
    past = write(past, jax.tree.map(lambda leaf: leaf[:, which], steps), iteration)
    cuts = trajectories.find(truth.ended[:, which], truth.episode_length[:, which], places)
    taken = take(past, cuts, config.environment.steps, iteration, horizon)
    return past, dataclasses.replace(cuts, environment=jnp.asarray(which)[cuts.environment]), taken


def take(past: Past, cuts: Cuts, steps: int, iteration: jax.Array, horizon: int) -> Past:
    """The steps [N, horizon, ...] of episodes; zeros past their ends.

    cuts: [N] relative to the rollout of `iteration`, which has been written; its environments count the tracked ones.
    steps: T of a rollout.
    """
    times = jnp.arange(horizon)
    rows = (_place(past, steps, iteration) + cuts.first[:, None] + times) % past.cost.shape[0]
    inside = times < cuts.length[:, None]

    def of(leaf: jax.Array) -> jax.Array:
        taken = leaf[rows, cuts.environment[:, None]]
        return jnp.where(inside.reshape(inside.shape + (1,) * (taken.ndim - 2)), taken, 0)

    return jax.tree.map(of, past)


def before(opened: Open, config: Config, iteration: jax.Array, horizon: int) -> tuple[jax.Array, jax.Array]:
    """Inputs of the last P steps before the rollout of `iteration`, [P, K, F], where P is `replayed`.

    Also which of them belong to episodes that were open then, [P, K].
    """
    since = jnp.arange(-replayed(horizon), 0)
    past = opened.past.inputs
    rows = (_place(opened.past, config.environment.steps, iteration) + since) % past.shape[0]
    return past[rows], since[:, None] >= -opened.length[tracked(config)]


def renewed_sums(opened: Open, config: Config, steps: dict[str, jax.Array], inside: jax.Array) -> dict[str, jax.Array]:
    """Sums [B] of open episodes, after a refit: new ones of tracked environments, whose steps were read again.

    Others keep what the cost models of their time said. steps: [P, K] by name; inside: [P, K] see `before`.
    """
    return {
        name: opened.sums[name].at[tracked(config)].set(jnp.sum(jnp.where(inside, values, 0.0), axis=0))
        for name, values in steps.items()
    }


def _place(past: Past, steps: int, iteration: jax.Array) -> jax.Array:
    """Where in the ring the rollout of an iteration begins, []."""
    return iteration % (past.cost.shape[0] // steps) * steps


def follow(opened: Open, ended: jax.Array, totals: dict[str, jax.Array], memory: jax.Array | None = None) -> Open:
    """What is open after a rollout. ended: [T, B]; totals: running sums [T, B] by name; memory: [B, ...]."""
    steps = ended.shape[0]
    last = jnp.max(jnp.where(ended, jnp.arange(1, steps + 1)[:, None], 0), axis=0)
    return dataclasses.replace(
        opened,
        length=jnp.where(last > 0, steps - last, opened.length + steps),
        memory=memory,
        sums={name: jnp.where(ended[-1], 0.0, total[-1]) for name, total in totals.items()},
    )
