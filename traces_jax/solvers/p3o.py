"""P3O: PPO with an exact penalty on the violation that the new policy is expected to have.

Penalized proximal policy optimization for safe reinforcement learning (Zhang et al., 2022).
"""

import chex
import jax
import jax.numpy as jnp

from traces_jax.core.optimize import Number
from traces_jax.solvers import advantages, ppo
from traces_jax.solvers.additive import Linearized
from traces_jax.solvers.base import AgentState


class P3O(Linearized, ppo.PPO):
    """PPO with another loss; nothing is carried between updates but the networks."""

    def update(self, config, state, batch, verdict, key, progress):
        clipped = config.method.solver_version == "as_published"
        gap = self.gap(config, verdict)

        def penalized(now: ppo.Acting, samples: ppo.Samples) -> jax.Array:
            reward = ppo.clipped_loss(now.log_prob, samples.log_prob, samples.advantage, config.ppo.clip)
            ratio = jnp.exp(now.log_prob - samples.log_prob)
            clip = config.ppo.clip if clipped else jnp.inf
            rise = cost_surrogate(ratio, samples.extra["cost_advantage"], clip)
            return reward + config.p3o.kappa * jax.nn.relu(rise + gap)

        agent, row = ppo.update(
            self.modules,
            state.agent,
            ppo.samples(
                batch,
                advantages.standardize(batch.reward_advantage),
                cost_advantage=advantages.center(batch.cost_advantage),
            ),
            key,
            ppo=config.ppo,
            actor_lr=ppo.actor_rate(config.ppo, progress),
            loss=penalized,
        )
        return AgentState(agent=agent), row


def cost_surrogate(ratio: jax.Array, cost_advantage: jax.Array, clip: Number) -> jax.Array:
    """The expected rise of the cost, clipped to the pessimistic side. ratio, cost_advantage: [N]. Returns a scalar."""
    chex.assert_rank([ratio, cost_advantage], 1)
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * cost_advantage
    return jnp.mean(jnp.maximum(ratio * cost_advantage, clipped))
