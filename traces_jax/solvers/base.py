"""What a learner asks of a solver: a constrained policy update that keeps its own state.

A solver owns the networks, the multiplier and whatever else it learns. The learner brings a batch with reward and cost
advantages that are neither scaled nor mixed, and the source's verdict. A solver may also carry numbers through every
episode, such as the budget that is left, which the policy then reads.
"""

import abc
from collections.abc import Callable
from typing import Any

import flax.struct
import jax

from traces_jax.config import Config
from traces_jax.core.agent import Modules
from traces_jax.sources.base import Verdict


@flax.struct.dataclass
class Batch:
    """A rollout to learn from, [T, B, ...].

    Attributes:
      observation: what the reward critic reads: the scaled observation and what the solver carries.
      context: what actor and cost critic read: the same with the source's summary.
      action, log_prob: what was done, and its log-density under the policy that acted.
      mean, log_std: of that policy; log_std is [A].
      reward_advantage, cost_advantage: of generalised advantage estimation, neither scaled nor mixed.
      reward_target, cost_target: what the critics are fitted to.
    """

    observation: jax.Array
    context: jax.Array
    action: jax.Array
    log_prob: jax.Array
    mean: jax.Array
    log_std: jax.Array
    reward_advantage: jax.Array
    cost_advantage: jax.Array
    reward_target: jax.Array
    cost_target: jax.Array


class Solver(abc.ABC):
    """All methods are pure; `state` is the solver's own, part of a lane's state. It has an attribute `agent`.

    Attributes:
      modules: the networks' shapes.
      one_lane_at_a_time: under vmap, fit the lanes' networks one after the other instead of in one batch. On a CPU
        that is faster: each lane stops when its own policy has moved far enough.
    """

    def __init__(self, modules: Modules, *, one_lane_at_a_time: bool):
        self.modules = modules
        self.one_lane_at_a_time = one_lane_at_a_time

    @abc.abstractmethod
    def init(self, config: Config, key: jax.Array, observation_size: int, context_size: int) -> Any:
        """The state at the start of a run. key: consumed."""

    @abc.abstractmethod
    def update(
        self, config: Config, state: Any, batch: Batch, verdict: Verdict, key: jax.Array, progress: jax.Array
    ) -> tuple[Any, dict[str, jax.Array]]:
        """One policy update. key: consumed; progress: [] share of the run that is over. Returns state and scalars."""

    # --- Numbers that travel with an episode; by default there are none.

    def carried_size(self, config: Config) -> int:
        """How many numbers of an episode the policy reads besides."""
        del config
        return 0

    def begin(self, config: Config, count: int) -> jax.Array | None:
        """These numbers at the start of an episode, [count, K]."""
        del config, count
        return None

    def carry(self, config: Config, carried: jax.Array | None, cost: jax.Array) -> jax.Array | None:
        """These numbers [B, K] after a step that cost [B]."""
        del config, cost
        return carried

    def shape_reward(self, config: Config, reward: jax.Array, carried: jax.Array | None) -> jax.Array:
        """The reward [T, B] that is learned from. carried: [T, B, K] after each step."""
        del config, carried
        return reward

    def lane_by_lane(self, function: Callable) -> Callable:
        """The function, run for one lane after the other where that is asked for."""
        return jax.custom_batching.sequential_vmap(function) if self.one_lane_at_a_time else function
