"""A solver of one's own: CRPO improves the return while the cost is within its limit, and lowers the cost while not.

A new approach for safe reinforcement learning with convergence guarantee (Xu, Liang, Lan, 2021). Train with it:

  python -m traces_jax.train --config experiments/ball_run.py --config.method.solver=examples.crpo:CRPO
"""

import jax.numpy as jnp

from traces_jax.core import agent as agent_lib
from traces_jax.solvers import AgentState, Solver, advantages, ppo

# How far above the limit the cost may be before it is lowered, as a fraction of the limit.
TOLERANCE = 0.05


class CRPO(Solver):
    """Nothing is learned but the networks: whether return or cost counts is decided anew in every iteration."""

    def init(self, config, key, observation_size, context_size):
        return AgentState(agent=agent_lib.init(self.modules, key, observation_size, context_size))

    def update(self, config, state, batch, verdict, key, progress):
        # Before the first episode has ended the measure is NaN, which is not above anything.
        violates = verdict.measure > verdict.limit + TOLERANCE * jnp.abs(verdict.limit)
        advantage = jnp.where(
            violates,
            -advantages.standardize(batch.cost_advantage),
            advantages.standardize(batch.reward_advantage),
        )
        agent, row = ppo.update(
            self.modules,
            state.agent,
            ppo.samples(batch, advantage),
            key,
            ppo=config.ppo,
            actor_lr=ppo.actor_rate(config.ppo, progress),
        )
        return AgentState(agent=agent), {"crpo/violates": violates.astype(jnp.float32), **row}
