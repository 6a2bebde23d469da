"""The interface of a solver: a constrained policy update with its own state.

A solver owns the networks, the multiplier and any other learned values. The learner passes it a batch with reward and
cost advantages, neither normalized nor mixed, and the source's verdict. A solver may also carry values through each
episode as policy inputs, such as the remaining cost budget.
"""

import abc
from collections.abc import Callable
from typing import Any

import flax.struct
import jax

from traces_jax.config import Config
from traces_jax.core.agent import Agent, Modules
from traces_jax.sources.base import Part, Source, Verdict


@flax.struct.dataclass
class Batch:
    """A rollout to learn from, [T, B, ...].

    Attributes:
      observation: input of the reward critic: the normalized observation and the solver's carried values.
      context: input of actor and cost critic: the same with the source's summary.
      action, log_prob: the action taken, and its log-density under the policy that acted.
      mean, log_std: of that policy; log_std is [A].
      reward_advantage, cost_advantage: from generalized advantage estimation, neither normalized nor mixed.
      reward_target, cost_target: regression targets of the critics.
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


@flax.struct.dataclass
class AgentState:
    """The state of a solver that learns nothing but the networks."""

    agent: Agent


class Solver(abc.ABC):
    """A solver. All methods are pure; `state` is the solver's part of a lane's state and has an attribute `agent`.

    Attributes:
      modules: the networks' shapes.
      horizon: steps of an episode of the task.
      one_lane_at_a_time: under vmap, update the lanes one after the other instead of in one batch. On a CPU that is
        faster: each lane stops as soon as its own policy exceeds the target KL.
    """

    def __init__(self, modules: Modules, *, horizon: int, one_lane_at_a_time: bool):
        self.modules = modules
        self.horizon = horizon
        self.one_lane_at_a_time = one_lane_at_a_time

    def check(self, config: Config, source: Source) -> None:
        """Raises a ConfigError for settings, or a source, that this solver does not support."""
        del config, source

    def parts(self, config: Config) -> list[Part]:
        """The device memory it needs in addition to what every run needs."""
        del config
        return []

    @abc.abstractmethod
    def init(self, config: Config, key: jax.Array, observation_size: int, context_size: int) -> Any:
        """The state at the start of a run. key: consumed."""

    @abc.abstractmethod
    def update(
        self, config: Config, state: Any, batch: Batch, verdict: Verdict, key: jax.Array, progress: jax.Array
    ) -> tuple[Any, dict[str, jax.Array]]:
        """One policy update. key: consumed; progress: [] fraction of the run completed. Returns state and scalars."""

    # --- Values carried through an episode; by default none.

    def carried_size(self, config: Config) -> int:
        """The number K of carried values, which are additional policy inputs."""
        del config
        return 0

    def begin(self, config: Config, count: int) -> jax.Array | None:
        """The carried values at the start of an episode, [count, K]."""
        del config, count
        return None

    def carry(self, config: Config, carried: jax.Array, cost: jax.Array, budget: jax.Array | None) -> jax.Array:
        """The carried values [B, K] after a step with cost [B].

        budget: [] limit of an episode's summed cost; None if the source's constraint is not on a sum.
        """
        del config, cost, budget
        return carried

    def shape_reward(self, config: Config, reward: jax.Array, carried: jax.Array | None) -> jax.Array:
        """The reward [T, B] to train on. carried: [T, B, K] after each step."""
        del config, carried
        return reward

    def carried_at_end(self, config: Config, carried: jax.Array) -> jax.Array:
        """The carried values [T, B, K] with which the value of an episode's last state is read."""
        del config
        return carried

    def lane_by_lane(self, function: Callable) -> Callable:
        """The function, run for one lane after the other under vmap if `one_lane_at_a_time` is set."""
        return jax.custom_batching.sequential_vmap(function) if self.one_lane_at_a_time else function
