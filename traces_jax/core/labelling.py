"""Where labels enter an iteration: inside the program, or between its two halves, where somebody outside answers.

The halves are cut out of the same iteration (`learner.py`):

  ask     collect -> observe -> ask          returns the trajectories to be labelled
  absorb  absorb -> verdict -> ... -> row    takes their labels

Whoever answers in between, the halves are the same two programs. So a run depends on the answers, bit for bit, and not
on who gave them: people, a file, or a function. One program of both halves would be compiled to other sums.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax import sources
from traces_jax.config import Config
from traces_jax.core import episodes, rollout
from traces_jax.feedback import labelers

if TYPE_CHECKING:
    from traces_jax.core.learner import Learner, LearnerState

# Numbers in a row that are computed from the true cost.
_FROM_TRUE_COST = (
    *("episode/cost", "episode/accepted", "window/cost", "query/accepted_pool"),
    *("estimate/right", "estimate/cost_where_none"),
)


@flax.struct.dataclass
class Opened:
    """An iteration that waits for labels.

    Attributes:
      collected, reading: of its rollout; see `sources`.
      query: the trajectories to be labelled.
      took: [] microseconds of the rollout, by the learner's clock.
    """

    collected: sources.Collected
    reading: Any
    query: sources.Query
    took: jax.Array


def observe(
    learner: "Learner",
    config: Config,
    state: "LearnerState",
    transitions: rollout.Transitions,
    truth: rollout.Truth,
    index: jax.Array,
) -> tuple[sources.Collected, Any, Any, jax.Array]:
    """Shows a rollout to the source. Returns it with its context, the source's state and reading, and the time."""
    cost, ended = learner.time(truth.cost)
    truth = _seen(learner.source, config, dataclasses.replace(truth, cost=cost))
    collected = sources.Collected(
        transitions=transitions,
        truth=truth,
        statistics=state.normalizers.observation,
        window=episodes.push(state.window, truth.ended, returns=truth.episode_return, costs=truth.episode_cost),
        iteration=jnp.asarray(index, jnp.int32),
    )
    return collected, *learner.source.observe(config, state.source, collected), ended


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


def ask(learner: "Learner", config: Config, state: "LearnerState", index: jax.Array) -> tuple["LearnerState", Opened]:
    """The first half of an iteration. Its query is meaningful only if one is due."""
    index, began = learner.time(index)
    state, transitions, truth = learner.collect(config, state, index)
    collected, source, reading, ended = observe(learner, config, state, transitions, truth, index)
    query = learner.source.ask(config, source, collected, jax.random.fold_in(state.key, index))
    return dataclasses.replace(state, source=source), Opened(collected, reading, query, ended - began)


def absorb(
    learner: "Learner",
    config: Config,
    state: "LearnerState",
    opened: Opened,
    answers: sources.Answers,
    index: jax.Array,
    *,
    due: bool,
) -> tuple["LearnerState", dict[str, jax.Array]]:
    """The second half. due: whether a query was; otherwise the answers are not read."""
    key = jax.random.fold_in(state.key, index)
    reward, now = learner.time(opened.collected.transitions.reward)
    collected = dataclasses.replace(
        opened.collected, transitions=dataclasses.replace(opened.collected.transitions, reward=reward)
    )

    def label() -> tuple[Any, dict[str, jax.Array]]:
        return learner.source.absorb(config, state.source, collected, opened.query, answers, key)

    if due:
        source, row = label()
    else:
        source = state.source
        row = {name: jnp.full(leaf.shape, jnp.nan, leaf.dtype) for name, leaf in jax.eval_shape(label)[1].items()}
    # The time in between was somebody else's.
    return learner.conclude(config, state, collected, source, opened.reading, row, (now - opened.took, now))


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
