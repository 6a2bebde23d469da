"""CUP: an unconstrained improvement of the policy, then a projection back into the constraint.

Constrained update projection approach to safe policy optimization (Yang et al., 2022).
"""

import dataclasses

import jax
import jax.numpy as jnp

from traces_jax.core import distributions
from traces_jax.core.agent import Agent
from traces_jax.core.optimize import Number
from traces_jax.solvers import advantages, lagrangian, minibatches, ppo
from traces_jax.solvers.lagrangian import Lagrangian, LagrangianState


class CUP(Lagrangian):
    """The multiplier moves first; then the policy improves, and is projected with the multiplier fixed."""

    def update(self, config, state, batch, verdict, key, progress):
        multiplier, weight, multiplier_row = lagrangian.ascend(
            config.lagrange, state.multiplier, verdict, maximum=config.cup.maximum
        )
        actor_lr = ppo.actor_rate(config.ppo, progress)
        improve_key, project_key = jax.random.split(key)
        # Improvement: PPO on the reward alone. The critics are fitted here.
        improved, row = ppo.update(
            self.modules,
            state.agent,
            ppo.samples(batch, advantages.standardize(batch.reward_advantage)),
            improve_key,
            ppo=config.ppo,
            actor_lr=actor_lr,
            target_kl=config.cup.target_kl,
        )
        projected, projection_row = self._project(config, improved, batch, weight, project_key, actor_lr)
        return LagrangianState(agent=projected, multiplier=multiplier), {**multiplier_row, **row, **projection_row}

    def _project(self, config, improved: Agent, batch, weight, key, actor_lr) -> tuple[Agent, dict[str, jax.Array]]:
        """Minimizes the cost and the distance from the improved policy. Only the actor moves."""
        context = batch.context
        mean, log_std = self.modules.policy(improved.actor.params, context)
        price = weight * price_factor(config.ppo.gamma, config.ppo.gae_lambda)

        def projection(now: ppo.Acting, samples: ppo.Samples) -> jax.Array:
            ratio = jnp.exp(now.log_prob - samples.log_prob)
            distance = distributions.kl(now.mean, now.log_std, samples.extra["mean"], log_std)
            return jnp.mean(price * ratio * samples.advantage + distance)

        def step(agent: Agent, samples: ppo.Samples) -> tuple[Agent, dict[str, jax.Array]]:
            actor, value = ppo.actor_step(
                self.modules,
                agent.actor,
                samples,
                projection,
                entropy=0.0,
                lr=actor_lr,
                max_grad_norm=config.cup.max_grad_norm,
            )
            return dataclasses.replace(agent, actor=actor), {"projection": value}

        def moved(agent: Agent) -> jax.Array:
            return jnp.mean(distributions.kl(mean, log_std, *self.modules.policy(agent.actor.params, context)))

        end = minibatches.run(
            improved,
            ppo.samples(batch, advantages.center(batch.cost_advantage), mean=mean),
            key,
            step,
            passes=config.ppo.passes,
            minibatch=config.ppo.minibatch,
            distance=moved,
            bound=config.cup.target_kl,
        )
        return end.agent, {
            "cup/passes": end.count.astype(jnp.float32),
            "cup/kl": end.moved,
            "loss/projection": end.losses["projection"],
        }


def price_factor(gamma: Number, gae_lambda: Number) -> jax.Array:
    """How much a cost advantage weighs in the projection: (1 - gamma lambda) / (1 - gamma), from the paper's bound."""
    # gamma may be 1; the factor then is only bounded by precision.
    return (1.0 - gamma * gae_lambda) / jnp.maximum(1.0 - jnp.asarray(gamma), 1e-6)
