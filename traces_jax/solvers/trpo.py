"""TRPO: one step of the policy within a trust region, then a fit of the critics.

Trust region policy optimization (Schulman et al., 2015).
"""

import dataclasses

import jax
import jax.numpy as jnp

from traces_jax.config import Config
from traces_jax.core import agent as agent_lib
from traces_jax.core.agent import Agent, Modules
from traces_jax.solvers import advantages, critics, minibatches, trust_region
from traces_jax.solvers.base import AgentState, Batch, Solver
from traces_jax.sources.base import FLOAT, Part


class SecondOrder(Solver):
    """Base class: what solvers with a trust region need in memory."""

    def parts(self, config):
        samples = FLOAT * config.iteration_steps * trust_region.FLOATS_PER_UNIT
        fields = ("policy.hidden", "environment.count", "environment.steps")
        return [Part("the trust region", samples * max(config.policy.hidden, default=1), fields, phase="update")]


class TRPO(SecondOrder):
    """Maximizes the return and ignores the cost."""

    def init(self, config, key, observation_size, context_size):
        return AgentState(agent=agent_lib.init(self.modules, key, observation_size, context_size))

    def update(self, config, state, batch, verdict, key, progress):
        del verdict, progress
        advantage = advantages.standardize(batch.reward_advantage)
        agent, row = improve(self.modules, config, state.agent, batch, advantage, key, reads_cost=False)
        return AgentState(agent=agent), row


def improve(
    modules: Modules, config: Config, agent: Agent, batch: Batch, advantage: jax.Array, key: jax.Array, *,
    reads_cost: bool,
) -> tuple[Agent, dict[str, jax.Array]]:  # fmt: skip
    """TRPO on an advantage [T, B]. key: consumed; reads_cost: whether the cost critic is fitted too."""
    samples = minibatches.samples(batch, advantage)
    region = trust_region.around(modules, agent, samples, config)
    params, row = trust_region.improve(region, samples.advantage, config.trust_region)
    return finish(modules, config, agent, samples, region.unravel(params), key, row, reads_cost=reads_cost)


def finish(
    modules: Modules, config: Config, agent: Agent, samples: minibatches.Samples, params, key: jax.Array,
    row: dict[str, jax.Array], *, reads_cost: bool,
) -> tuple[Agent, dict[str, jax.Array]]:  # fmt: skip
    """The agent with new policy parameters and fitted critics. row: scalars of the policy's step."""
    settings = config.trust_region
    agent, critic_row = critics.fit(
        modules,
        dataclasses.replace(agent, actor=dataclasses.replace(agent.actor, params=params)),
        samples,
        key,
        ppo=config.ppo,
        passes=settings.critic_passes,
        lr=settings.critic_lr,
        reads_cost=reads_cost,
    )
    _, log_std = modules.policy(params, samples.context[0])
    return agent, {**row, "trust_region/std": jnp.mean(jnp.exp(log_std)), **critic_row}
