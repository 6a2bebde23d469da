"""FOCOPS: the best constrained policy near the old one in closed form, and a first-order step towards it.

First order constrained optimization in policy space (Zhang, Vuong, Ross, 2020).
"""

import chex
import jax
import jax.numpy as jnp

from traces_jax.core import distributions
from traces_jax.core.optimize import Number
from traces_jax.solvers import lagrangian, ppo
from traces_jax.solvers.lagrangian import Lagrangian, LagrangianState


class FOCOPS(Lagrangian):
    """The multiplier moves first; then the policy minimizes `loss` in minibatches."""

    def update(self, config, state, batch, verdict, key, progress):
        multiplier, weight, multiplier_row = lagrangian.ascend(
            config.lagrange, state.multiplier, verdict, maximum=config.focops.maximum
        )
        gates_batch = config.method.solver_version == "as_released"

        def towards_best(now: ppo.Acting, samples: ppo.Samples) -> jax.Array:
            return loss(
                distributions.kl(now.mean, now.log_std, samples.extra["mean"], batch.log_std),
                jnp.exp(now.log_prob - samples.log_prob),
                samples.advantage,
                temperature=config.focops.temperature,
                trust=config.focops.trust,
                gates_batch=gates_batch,
            )

        agent, row = ppo.update(
            self.modules,
            state.agent,
            ppo.samples(batch, lagrangian.penalized(batch, weight), mean=batch.mean),
            key,
            ppo=config.ppo,
            actor_lr=ppo.actor_rate(config.ppo, progress),
            loss=towards_best,
        )
        return LagrangianState(agent=agent, multiplier=multiplier), {**multiplier_row, **row}


def loss(
    kl: jax.Array, ratio: jax.Array, advantage: jax.Array, *, temperature: Number, trust: Number, gates_batch: bool
) -> jax.Array:
    """KL(new || best), up to a constant, over the states where the policy is still near the old one.

    kl: [N] of the new policy from the old one; ratio: [N] of their densities; advantage: [N] of reward minus cost.

    gates_batch: as released. There the indicator [N, 1] is multiplied with [N] to a matrix, whose mean is taken: the
    indicator of a state does not gate its own advantage, but all advantages of the minibatch by the share of near
    states.
    """
    chex.assert_rank([kl, ratio, advantage], 1)
    near = (kl <= trust).astype(jnp.float32)
    gain = ratio * advantage / temperature
    if gates_batch:
        return jnp.mean(near * kl) - jnp.mean(near) * jnp.mean(gain)
    return jnp.mean(near * (kl - gain))
