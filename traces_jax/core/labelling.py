"""Where labels enter an iteration, and what a run may know of the true cost if they are not the oracle's."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from traces_jax import sources
from traces_jax.config import Config
from traces_jax.core import episodes, rollout
from traces_jax.feedback import labelers

# Numbers in a row that are computed from the true cost.
_FROM_TRUE_COST = (
    *("episode/cost", "episode/accepted", "deployed/cost", "deployed/accepted", "window/cost", "query/accepted_pool"),
    *("estimate/right", "estimate/cost_where_none"),
)


def observe(
    source: sources.Source,
    config: Config,
    state: Any,
    transitions: rollout.Transitions,
    truth: rollout.Truth,
    index: jax.Array,
    memory: jax.Array | None,
) -> tuple[sources.Collected, Any, Any]:
    """Shows a rollout to the source. state: the learner's; memory: the source's after the rollout, of open episodes.

    Returns the rollout with its context, and the source's state and reading.
    """
    truth = _seen(source, config, truth)
    plays_mean = jnp.arange(truth.ended.shape[1]) < config.mean_environments
    windows = episodes.push_windows(
        state.windows, truth.ended, plays_mean, returns=truth.episode_return, costs=truth.episode_cost
    )
    collected = sources.Collected(
        transitions=transitions,
        truth=truth,
        statistics=state.normalizers.observation,
        windows=windows,
        iteration=jnp.asarray(index, jnp.int32),
        plays_mean=plays_mean,
        memory=memory,
    )
    return collected, *source.observe(config, state.source, collected)


def in_program(
    source: sources.Source, config: Config, state: Any, collected: sources.Collected, key: jax.Array
) -> tuple[Any, dict[str, jax.Array]]:
    """If a query is due: selects trajectories, labels them and refits. Otherwise the scalars are NaN.

    state: of the source. Returns its new state.
    """

    def label(state: Any) -> tuple[Any, dict[str, jax.Array]]:
        query = source.ask(config, state, collected, key)
        answers = source.answer(config, query, key)
        return source.absorb(config, state, collected, query, answers, key)

    def wait(state: Any) -> tuple[Any, dict[str, jax.Array]]:
        row = jax.eval_shape(label, state)[1]
        return state, jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), row)

    due = source.asks(config, collected.iteration)
    if isinstance(due, bool):
        return label(state) if due else (state, {})
    return lax.cond(due, label, wait, state)


def _seen(source: sources.Source, config: Config, truth: rollout.Truth) -> rollout.Truth:
    """What a run may know of the truth: without the costs, if its labels are not the oracle's."""
    if not _hides(source, config):
        return truth
    unknown = jnp.full_like(truth.cost, jnp.nan)
    return dataclasses.replace(truth, cost=unknown, episode_cost=unknown)


def told(source: sources.Source, config: Config, row: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """A row as it is written: comparisons with the true cost are NaN, if the labels are not the oracle's."""
    if not _hides(source, config):
        return row
    return {name: jnp.full_like(value, jnp.nan) if name in _FROM_TRUE_COST else value for name, value in row.items()}


def _hides(source: sources.Source, config: Config) -> bool:
    return source.learns and labelers.kind(config.labels.by) != labelers.ORACLE
