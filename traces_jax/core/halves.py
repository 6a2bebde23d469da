"""One iteration cut into two halves, for labels that come from outside (`learner.py` has it in one piece).

  ask     collect -> observe -> ask          returns the trajectories to be labelled
  absorb  absorb -> verdict -> ... -> row    takes their labels

Whoever answers in between, the halves are the same two programs. So a run depends on the answers, bit for bit, and not
on who gave them: people, a file, or a function. One program of both halves would be compiled to other sums.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax import sources
from traces_jax.config import Config
from traces_jax.core.learner import Learner, LearnerState


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


def ask(learner: Learner, config: Config, state: LearnerState, index: jax.Array) -> tuple[LearnerState, Opened]:
    """The first half of an iteration. Its query is meaningful only if one is due."""
    index, began = learner.time(index)
    state, transitions, truth = learner.collect(config, state, index)
    cost, ended = learner.time(truth.cost)
    truth = dataclasses.replace(truth, cost=cost)
    collected, source, reading = learner.observe(config, state, transitions, truth, index)
    query = learner.source.ask(config, source, collected, jax.random.fold_in(state.key, index))
    return dataclasses.replace(state, source=source), Opened(collected, reading, query, ended - began)


def absorb(
    learner: Learner,
    config: Config,
    state: LearnerState,
    opened: Opened,
    answers: sources.Answers,
    index: jax.Array,
    *,
    due: bool,
) -> tuple[LearnerState, dict[str, jax.Array]]:
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
    return learner.conclude(config, state, collected, source, opened.reading, row, (now - opened.took, now), index)
