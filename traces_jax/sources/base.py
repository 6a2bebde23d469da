"""What a learner asks of a source of costs.

While the policy acts, a source may follow each episode with a memory of its own. Actor and cost critic read a summary
of it. After a rollout, the learner calls, in this order:

  observe  takes the rollout in
  ask      says which trajectories are to be labelled, in iterations where labels are due
  answer   the labels, if a program is the labeler; a person can answer instead
  absorb   learns from the labels
  verdict  gives the cost of every step and the constraint

The defaults below are those of a source that has no memory and learns nothing.
"""

import abc
import dataclasses
from typing import Any

import flax.struct
import jax

from traces_jax.config import Config
from traces_jax.core import optimize
from traces_jax.core.episodes import EpisodeWindow
from traces_jax.core.normalize import RunningStatistics
from traces_jax.core.rollout import Transitions, Truth
from traces_jax.feedback.trajectories import Origin, Trajectories
from traces_jax.tasks import Task


@flax.struct.dataclass
class Collected:
    """A rollout, and what was known when it began.

    Attributes:
      transitions, truth: [T, B, ...].
      statistics: of observations, those the policy acted with.
      window: returns and costs of the last finished episodes, this rollout's included.
      iteration: [] its number.
    """

    transitions: Transitions
    truth: Truth
    statistics: RunningStatistics
    window: EpisodeWindow
    iteration: jax.Array


@flax.struct.dataclass
class Query:
    """Trajectories that are to be labelled, K places. Those beyond what is due are empty.

    Attributes:
      rows: the trajectories. Their labels are those of the program that labels, and sealed: only `answer` reads them.
      origin: [K] where they come from.
      watched: [K, T, ...] what the learner was asked to watch of them, such as positions; None for nothing.
      expected: [K, P] log-probability that each prefix is acceptable, as estimated when it was asked.
      due: [] labelled trajectories that were due in all.
      row: scalars about the choice.
    """

    rows: Trajectories
    origin: Origin
    watched: Any
    expected: jax.Array
    due: jax.Array
    row: dict[str, jax.Array]


@flax.struct.dataclass
class Answers:
    """What the labeler says. labels: [K, P] 1 where the prefix is acceptable; mask: [K, P] which prefixes it judged."""

    labels: jax.Array
    mask: jax.Array


@flax.struct.dataclass
class Verdict:
    """What a source makes of a rollout.

    Attributes:
      cost: [T, B] of every step.
      measure: [] what is constrained; not a number while nothing is known.
      limit: [] what it must not exceed.
      fresh: [] whether episodes ended in this rollout, so that the measure is a new one.
    """

    cost: jax.Array
    measure: jax.Array
    limit: jax.Array
    fresh: jax.Array


@flax.struct.dataclass
class Prior:
    """What was learned of the cost before a run.

    Attributes:
      fitted: the estimator and its optimiser.
      statistics: of the observations it was fitted to; None if it reads them unscaled and nobody knows.
      rows: labelled trajectories to start the store with, or None.
    """

    fitted: optimize.Trained
    statistics: RunningStatistics | None
    rows: Trajectories | None


# Bytes of a number. Copies of weights: with the optimiser's two moments; and, while they are updated, gradients and new
# weights.
FLOAT = 4
KEPT, UPDATED = 3, 2


@dataclasses.dataclass(frozen=True)
class Part:
    """Some of the memory that a run needs.

    Attributes:
      what: for a sentence.
      size: bytes of one lane on one device.
      fields: paths of the settings that it grows with.
      kept: whether it lives on between iterations, so that a checkpoint copies it.
    """

    what: str
    size: int
    fields: tuple[str, ...]
    kept: bool = False


class Source(abc.ABC):
    """All methods are pure; `state` is the source's own, part of a lane's state.

    Attributes:
      learns: whether its costs are learned; then their scale means nothing.
    """

    learns = False

    def __init__(self, task: Task):
        self.task = task

    def check(self, config: Config) -> None:
        """Refuses settings that this source cannot work with: a ConfigError."""
        del config

    def parts(self, config: Config) -> list[Part]:
        """The memory it needs besides what every run needs."""
        del config
        return []

    # --- While the policy acts.

    def summary_size(self, config: Config) -> int:
        """Numbers in a summary; 0 for a source without memory."""
        del config
        return 0

    def memory(self, config: Config, count: int) -> jax.Array | None:
        """Memories [count, ...] of episodes that begin."""
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
        """The cost [B] of a step while it is taken, for solvers that need it then. Only the oracle reads true_cost."""

    # --- After a rollout.

    def init(self, config: Config, key: jax.Array, prior: Prior | None, watched: Any) -> Any:
        """The state at the start of a run.

        key: consumed; prior: what is known already, None for nothing; watched: shape and type of what the learner
        watches of a step, None for nothing.
        """
        del config, key, prior, watched
        return None

    def learned(self, state: Any) -> Any:
        """The part of the state that must stay finite."""
        del state
        return None

    def with_learned(self, state: Any, learned: Any) -> Any:
        """The state with another such part."""
        del learned
        return state

    def observe(self, config: Config, state: Any, collected: Collected) -> tuple[Any, Any]:
        """Takes a rollout in. Returns the state, and what `verdict` wants to know of the rollout."""
        del config, collected
        return state, None

    def asks(self, config: Config, iteration: jax.Array) -> jax.Array | bool:
        """Whether labels are due after this iteration []; the same for all lanes."""
        del config, iteration
        return False

    def ask(self, config: Config, state: Any, collected: Collected, key: jax.Array) -> Query:
        """Chooses trajectories to be labelled. key: of the lane in this iteration, for named streams."""
        raise NotImplementedError

    def answer(self, config: Config, query: Query, key: jax.Array) -> Answers:
        """What a program that knows the true cost says of them."""
        raise NotImplementedError

    def absorb(
        self, config: Config, state: Any, collected: Collected, query: Query, answers: Answers, key: jax.Array
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Learns from the answers. Returns the state and scalars."""
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
        """Costs and constraint. reading: of `observe`; asked: [] whether labels were absorbed in this iteration.

        Returns the state, the verdict and scalars.
        """

    def credits(
        self, config: Config, state: Any, statistics: RunningStatistics, observation: jax.Array, action: jax.Array
    ) -> jax.Array | None:
        """Expected credits [T, B] of episodes from their first step on; None for a source without an estimator.

        observation: [T, B, O] raw; action: [T, B, A].
        """
        del config, state, statistics, observation, action
        return None
