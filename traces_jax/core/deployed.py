"""A policy outside of training: from observation to mean action, with its memory of each episode, as a pure step."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.config import Config
from traces_jax.core import rollout
from traces_jax.core.learner import Learner, LearnerState
from traces_jax.sources import Credits


@flax.struct.dataclass
class Remembered:
    """What a policy remembers of B episodes.

    Attributes:
      memory: of the cost source and of the solver, [B, ...] each.
      started: [B] whether the episode has had a step.
    """

    memory: rollout.Memory
    started: jax.Array


@dataclasses.dataclass(frozen=True)
class Deployed:
    """One lane's policy. state: only its policy has values; other leaves may be mere shapes."""

    learner: Learner
    config: Config
    state: LearnerState

    @property
    def reads_cost(self) -> bool:
        """Whether it must be told the true cost of each step: it has a budget of that."""
        return self.learner.solver.carried_size(self.config) > 0 and not self.learner.source.learns

    def begin(self, count: int) -> Remembered:
        """The memory at the start of `count` episodes."""
        player = self.learner.player(self.config, self.state)
        return Remembered(memory=player.begin(count), started=jnp.zeros((count,), bool))

    def step(self, remembered: Remembered, observation: jax.Array, cost: jax.Array) -> tuple[jax.Array, Remembered]:
        """Mean actions [B, A] for raw observations [B, O], and the memory after them.

        cost: [B] true cost of the step before; only read by a policy that `reads_cost`.
        """
        learner, config = self.learner, self.config
        player = learner.player(config, self.state)
        memory = remembered.memory
        if self.reads_cost:
            assert memory.solver is not None, "begin() made it"
            budget = learner.source.budget(config, self.state.source) if learner.source.sums(config) else None
            paid = learner.solver.carry(config, memory.solver, cost, budget)
            memory = dataclasses.replace(memory, solver=rollout.where(remembered.started, paid, memory.solver))
        quiet = jnp.zeros((observation.shape[0], learner.task.action_size))
        action = player.act(observation, player.summarize(memory.source), memory.solver, quiet)
        if not self.reads_cost:
            memory = player.remember(memory, observation, action, jnp.zeros_like(cost))
        return action, Remembered(memory=memory, started=jnp.ones_like(remembered.started))

    def credits(self, observation: jax.Array, action: jax.Array) -> Credits | None:
        """What the estimator says of episodes, raw observation [T, B, O] and action [T, B, A].

        None for a cost source without an estimator.
        """
        source, state = self.learner.source, self.state
        return source.credits(self.config, state.source, state.normalizers.observation, observation, action)
