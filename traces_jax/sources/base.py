"""The interface of a cost source.

While the policy acts, a source may update a recurrent memory of each episode. Actor and cost critic read a summary of
it. After a rollout, the learner calls, in this order:

  observe  processes the rollout
  ask      selects trajectories to be labelled, in iterations where a query is due
  answer   computes the labels, if the labeler is a program; a person can label instead
  absorb   learns from the labels
  verdict  returns the cost of every step and the constraint

The default methods are for a source without memory that learns nothing.
"""

import abc
import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.config import Config
from traces_jax.core import episodes, optimize
from traces_jax.core.episodes import PolicyWindows
from traces_jax.core.normalize import RunningStatistics
from traces_jax.core.rollout import Transitions, Truth
from traces_jax.feedback.trajectories import Origin, Trajectories
from traces_jax.tasks import Task


@flax.struct.dataclass
class Collected:
    """A rollout and its context.

    Attributes:
      transitions, truth: [T, B, ...].
      statistics: the observation statistics that the policy acted with.
      windows: returns and costs of the last finished episodes, including those of this rollout.
      iteration: [] index of the iteration.
      plays_mean: [B] which environments play the mean action.
      memory: [B, ...] the source's memory after the rollout, if episodes span iterations; otherwise None.
    """

    transitions: Transitions
    truth: Truth
    statistics: RunningStatistics
    windows: PolicyWindows
    iteration: jax.Array
    plays_mean: jax.Array
    memory: jax.Array | None = None


@flax.struct.dataclass
class Query:
    """Trajectories to be labelled, in K slots. Slots beyond the number due are empty.

    Attributes:
      rows: the trajectories. They contain the simulated labeler's labels, which only `answer` may read.
      origin: [K] where they come from.
      watched: [K, T, ...] output of the learner's `watch` for them, such as positions; None without `watch`.
      expected: [K, P] log-probability that each prefix is acceptable, as estimated before labelling.
      random: [K] which were drawn at random.
      due: [] total number of trajectories due for labelling so far.
      row: scalars about the selection.
    """

    rows: Trajectories
    origin: Origin
    watched: Any
    expected: jax.Array
    random: jax.Array
    due: jax.Array
    row: dict[str, jax.Array]


@flax.struct.dataclass
class Answers:
    """The labels. labels: [K, P] 1 where the prefix is acceptable; mask: [K, P] which prefixes were labelled."""

    labels: jax.Array
    mask: jax.Array


@flax.struct.dataclass
class Verdict:
    """A source's costs and constraint for a rollout.

    Attributes:
      cost: [T, B] of every step.
      measure: [] the constrained quantity, which the solver acts on; NaN before the first episode has ended.
      deployed: [] the same of the policy to deploy, see `core/kept.py`.
      limit: [] upper bound of the measure, now.
      final: [] the same at the end of the run, for the policy to deploy.
      tolerance: [] a violation of this size matters: the kept policy satisfies the constraint by half of it, and costs
        that vary by less than a hundredth of it are noise.
      fresh: [] whether episodes ended in this rollout, so that the measure has changed.
    """

    cost: jax.Array
    measure: jax.Array
    deployed: jax.Array
    limit: jax.Array
    final: jax.Array
    tolerance: jax.Array
    fresh: jax.Array


# A violation of a summed cost by this share of its limit matters.
_TOLERANCE = 0.1


def judge(
    config: Config,
    collected: Collected,
    *,
    cost: jax.Array,
    noisy: jax.Array,
    mean: jax.Array,
    limit: jax.Array,
    tolerance: jax.Array,
    final: jax.Array | None = None,
) -> Verdict:
    """The verdict on a rollout. cost: [T, B]; noisy, mean: [] the measure of the policy and of its mean action.

    final: [] the limit at the end of the run; None if it is that of now.
    """
    return Verdict(
        cost=cost,
        measure=episodes.constrained(noisy, mean, config, collected.iteration),
        deployed=noisy if config.constraint.policy == "noisy" else mean,
        limit=limit,
        final=limit if final is None else final,
        tolerance=tolerance,
        fresh=jnp.any(collected.truth.ended),
    )


def on_sum(
    config: Config, collected: Collected, *, cost: jax.Array, noisy: jax.Array, mean: jax.Array, limit: jax.Array
) -> Verdict:
    """The same for the mean summed cost of an episode as measure."""
    # With a limit of zero, there must be a tolerance too.
    tolerance = _TOLERANCE * jnp.maximum(limit, 1.0)
    return judge(config, collected, cost=cost, noisy=noisy, mean=mean, limit=limit, tolerance=tolerance)


@flax.struct.dataclass
class Credits:
    """What a source says of full episodes.

    Attributes:
      credit: [T, B] the expected cost of each step.
      log_probability: [T, B] that the episode is acceptable up to and including each step.
    """

    credit: jax.Array
    log_probability: jax.Array


@flax.struct.dataclass
class Prior:
    """A cost model learned before a run.

    Attributes:
      fitted: the estimator and its optimizer state.
      statistics: of the observations it was fitted to; None if they are unknown and it reads raw observations.
      rows: labelled trajectories to start the store with, or None.
    """

    fitted: optimize.Trained
    statistics: RunningStatistics | None
    rows: Trajectories | None


# Bytes of a float. Copies of the weights that are kept (with Adam's two moments), and that an update needs in addition
# (gradients and new weights).
FLOAT = 4
KEPT, UPDATED = 3, 2


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of the memory that a run needs.

    Attributes:
      what: its name in messages.
      size: bytes for one lane on one device.
      fields: paths of the settings that it grows with.
      kept: whether it is kept between iterations, so that a checkpoint copies it.
      phase: when it is needed. Parts of different phases take turns in the same memory. Empty: always.
    """

    what: str
    size: int
    fields: tuple[str, ...]
    kept: bool = False
    phase: str = ""


class Source(abc.ABC):
    """A cost source. All methods are pure; `state` is the source's part of a lane's state.

    Attributes:
      learns: whether its costs are learned; their scale is then arbitrary.
    """

    learns = False

    def __init__(self, task: Task):
        self.task = task

    def check(self, config: Config) -> None:
        """Raises a ConfigError for settings that this source does not support."""
        del config

    def parts(self, config: Config) -> list[Part]:
        """The device memory it needs in addition to what every run needs."""
        del config
        return []

    # --- While the policy acts.

    def summary_size(self, config: Config) -> int:
        """Size H of a summary; 0 for a source without memory."""
        del config
        return 0

    def memory(self, config: Config, count: int) -> jax.Array | None:
        """Initial memories [count, ...] of episodes."""
        del config, count
        return None

    def summarize(self, memory: jax.Array | None) -> jax.Array | None:
        """Summaries [B, H] of memories [B, ...]."""
        del memory
        return None

    def remember(
        self,
        config: Config,
        state: Any,
        statistics: RunningStatistics,
        memory: jax.Array | None,
        observation: jax.Array,
        action: jax.Array,
    ) -> jax.Array | None:
        """Memories [B, ...] after a step. observation: [B, O] raw; action: [B, A]."""
        del config, state, statistics, observation, action
        return memory

    def resume(self, config: Config, state: Any, memory: jax.Array | None, environments: jax.Array) -> jax.Array | None:
        """Memories [b, ...] with which environments [b] begin a rollout, if episodes span iterations.

        memory: [b, ...] as the last rollout left it, which may be out of date.
        """
        del config, state, environments
        return memory

    @abc.abstractmethod
    def step_cost(
        self,
        config: Config,
        state: Any,
        statistics: RunningStatistics,
        memory: jax.Array | None,
        next_memory: jax.Array | None,
        observation: jax.Array,
        action: jax.Array,
        true_cost: jax.Array,
    ) -> jax.Array:
        """The cost [B] of a step during the rollout, for solvers that carry values. Only the oracle reads true_cost."""

    def sums(self, config: Config) -> bool:
        """Whether the constraint is on the summed cost of an episode, so that it has a budget while it runs."""
        del config
        return False

    def budget(self, config: Config, state: Any) -> jax.Array:
        """Limit [] of the summed cost of an episode; only called if `sums`."""
        raise NotImplementedError

    # --- After a rollout.

    def init(self, config: Config, key: jax.Array, prior: Prior | None, watched: Any) -> Any:
        """The state at the start of a run.

        key: consumed; prior: a cost model learned before, or None; watched: shapes and dtypes of the output of the
        learner's `watch` for one step, None without `watch`.
        """
        del config, key, prior, watched
        return None

    def learned(self, state: Any) -> Any:
        """The part of the state that must stay finite."""
        del state
        return None

    def with_learned(self, state: Any, learned: Any) -> Any:
        """The state with that part replaced."""
        del learned
        return state

    def observe(self, config: Config, state: Any, collected: Collected) -> tuple[Any, Any]:
        """Processes a rollout. Returns the state, and a reading of the rollout for `verdict`."""
        del config, collected
        return state, None

    def asks(self, config: Config, iteration: jax.Array | int) -> jax.Array | bool:
        """Whether a query is due after this iteration []; the same for all lanes."""
        del config, iteration
        return False

    def ask(self, config: Config, state: Any, collected: Collected, key: jax.Array) -> Query:
        """Selects trajectories to be labelled. key: the lane's key for this iteration, for named streams."""
        raise NotImplementedError

    def answers_inside(self, config: Config) -> bool:
        """Whether `answer` is a part of the iteration, and not somebody or something between its two halves."""
        del config
        return True

    def answer(self, config: Config, query: Query, key: jax.Array) -> Answers:
        """Labels from a program: one that knows the true cost, or a user's own function."""
        raise NotImplementedError

    def absorb(
        self, config: Config, state: Any, collected: Collected, query: Query, answers: Answers, key: jax.Array
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Learns from the labels. Returns the state and scalars."""
        raise NotImplementedError

    @abc.abstractmethod
    def verdict(
        self,
        config: Config,
        state: Any,
        collected: Collected,
        reading: Any,
        asked: jax.Array | bool,
        key: jax.Array,
    ) -> tuple[Any, Verdict, dict[str, jax.Array]]:
        """Costs and constraint. reading: from `observe`; asked: [] whether labels were absorbed in this iteration.

        Returns the state, the verdict and scalars.
        """

    def credits(
        self, config: Config, state: Any, statistics: RunningStatistics, observation: jax.Array, action: jax.Array
    ) -> Credits | None:
        """Credits of full episodes; None for a source without an estimator.

        observation: [T, B, O] raw; action: [T, B, A].
        """
        del config, state, statistics, observation, action
        return None
