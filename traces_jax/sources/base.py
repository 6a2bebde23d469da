"""What a learner asks of a source of costs, and nothing more.

A source may follow each episode with a memory of its own, a summary of which the actor and the cost critic read.
"""

from typing import Any, Protocol

import flax.struct
import jax

from traces_jax.config import Config
from traces_jax.core import optimize
from traces_jax.core.episodes import EpisodeWindow
from traces_jax.core.normalize import RunningStatistics
from traces_jax.core.rollout import Transitions, Truth
from traces_jax.feedback.trajectories import Trajectories


@flax.struct.dataclass
class Verdict:
    """What a source makes of a rollout.

    Attributes:
      cost: [T, B] of every step.
      measure: [] what is constrained; not a number while nothing is known.
      limit: [] what it must not exceed.
    """

    cost: jax.Array
    measure: jax.Array
    limit: jax.Array


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


class Source(Protocol):
    """All functions are pure; `state` is the source's own, part of a lane's state.

    Attributes:
      learns: whether its costs are learned; then their size means nothing.
    """

    learns: bool

    def summary_size(self, config: Config) -> int:
        """Numbers in a summary; 0 for a source without memory."""
        ...

    def learned(self, state: Any) -> Any:
        """The part of the state that must stay finite."""
        ...

    def with_learned(self, state: Any, learned: Any) -> Any:
        """The state with another such part."""
        ...

    def init(self, config: Config, key: jax.Array, prior: Prior | None) -> Any:
        """The state at the start of a run. key: consumed. prior: what is known already; None for nothing."""
        ...

    def memory(self, config: Config, count: int) -> jax.Array | None:
        """Memories [count, ...] of episodes that begin."""
        ...

    def summarize(self, memory: jax.Array | None) -> jax.Array | None:
        """Summaries [B, H] of memories [B, ...]; None for a source without memory."""
        ...

    def remember(
        self,
        config: Config,
        state: Any,
        statistics: RunningStatistics,
        memory: jax.Array | None,
        observation: jax.Array,
        action: jax.Array,
    ) -> jax.Array | None:
        """Memories [B, ...] after a step. statistics: of observations; observation: [B, O] raw; action: [B, A]."""
        ...

    def judge(
        self,
        config: Config,
        state: Any,
        statistics: RunningStatistics,
        transitions: Transitions,
        truth: Truth,
        window: EpisodeWindow,
        key: jax.Array,
        index: jax.Array,
    ) -> tuple[Any, Verdict, dict[str, jax.Array]]:
        """Learns from a rollout what is to be learned, and judges it.

        statistics: those the rollout was acted with. window: returns and costs of the last finished
        episodes. key: the lane's key in this iteration, for named streams. Returns the new state, the verdict, and
        scalars.
        """
        ...
