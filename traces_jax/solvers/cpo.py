"""CPO: the best step within a trust region and a linearized constraint.

Constrained policy optimization (Achiam et al., 2017). With H the Fisher matrix, the step maximizes g'x subject to
c + b'x <= 0 and x'Hx / 2 <= delta.
"""

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.core.optimize import Number
from traces_jax.solvers import advantages, minibatches, trpo, trust_region
from traces_jax.solvers.additive import Linearized
from traces_jax.solvers.base import AgentState

_TINY = 1e-8
# Squared length of a cost gradient that counts as zero.
_FLAT = 1e-6


class CPO(Linearized, trpo.TRPO):
    """TRPO with the constraint inside the step; nothing is carried between updates but the networks."""

    def update(self, config, state, batch, verdict, key, progress):
        del progress
        settings = config.trust_region
        samples = minibatches.samples(
            batch,
            advantages.standardize(batch.reward_advantage),
            cost_advantage=advantages.center(batch.cost_advantage),
        )
        cost_advantage = samples.extra["cost_advantage"]
        region = trust_region.around(self.modules, state.agent, samples, config)
        gap = self.gap(config, verdict)
        reward, g = jax.value_and_grad(region.mean)(region.center, samples.advantage)
        cost, b = jax.value_and_grad(region.mean)(region.center, cost_advantage)
        reward_direction = trust_region.solve(region.fisher, g, settings.conjugate_steps)
        cost_direction = trust_region.solve(region.fisher, b, settings.conjugate_steps)
        # The paper minimizes -g'x. The released program maximizes g'x with the paper's formulas, so r has another sign.
        sign = 1.0 if config.method.solver_version == "as_released" else -1.0
        plan = best(
            q=g @ reward_direction,
            r=sign * (g @ cost_direction),
            s=b @ cost_direction,
            c=gap,
            flat=b @ b <= _FLAT,
            delta=settings.target_kl,
        )
        step = plan.along_reward * reward_direction - plan.along_cost * cost_direction

        def accept(params: jax.Array) -> jax.Array:
            improves = region.mean(params, samples.advantage) >= reward
            allowed = region.mean(params, cost_advantage) - cost <= jnp.maximum(-gap, 0.0)
            # Above the limit, the return may fall.
            return (improves | ~plan.within) & allowed & (region.kl(params) <= settings.target_kl)

        params, share = trust_region.search(region.center, step, accept, tries=config.cpo.tries, shrink=settings.shrink)
        row = {**trust_region.report(region, params, share), "cpo/recovers": plan.recovers.astype(jnp.float32)}
        agent, row = trpo.finish(
            self.modules, config, state.agent, samples, region.unravel(params), key, row, reads_cost=True
        )
        return AgentState(agent=agent), row


@flax.struct.dataclass
class Plan:
    """The step, along_reward H^-1 g - along_cost H^-1 b, and where it starts.

    Attributes:
      along_reward, along_cost: [].
      within: [] whether the policy satisfies its constraint now.
      recovers: [] whether no step in the trust region satisfies it, so that only the cost is lowered.
    """

    along_reward: jax.Array
    along_cost: jax.Array
    within: jax.Array
    recovers: jax.Array


def best(*, q: jax.Array, r: jax.Array, s: jax.Array, c: jax.Array, flat: jax.Array, delta: Number) -> Plan:
    """The dual problem in closed form (theorem 2 of the paper). All arrays: [].

    q = g'H^-1 g, r = -g'H^-1 b, s = b'H^-1 b; c: the violation; flat: whether the cost has no slope; delta: target KL.
    """
    within = c < 0.0
    # The boundary of the constraint is inside the trust region if c^2 / s <= 2 delta.
    a, reach = q - r**2 / (s + _TINY), 2.0 * delta - c**2 / (s + _TINY)
    free = within & (flat | (reach < 0.0))
    recovers = ~within & (reach < 0.0)
    # Two candidates for the multiplier of the trust region: with the constraint active, and without.
    border = r / jnp.where(jnp.abs(c) > _TINY, c, jnp.where(within, -_TINY, _TINY))
    active = jnp.sqrt(jnp.maximum(a, 0.0) / jnp.maximum(reach, _TINY))
    idle = jnp.sqrt(q / (2.0 * delta))
    active = jnp.where(within, jnp.clip(active, 0.0, jnp.maximum(border, 0.0)), jnp.maximum(active, border))
    idle = jnp.where(within, jnp.maximum(idle, border), jnp.clip(idle, 0.0, jnp.maximum(border, 0.0)))
    value_active = -0.5 * (a / (active + _TINY) + reach * active) - r * c / (s + _TINY)
    value_idle = -0.5 * (q / (idle + _TINY) + 2.0 * delta * idle)
    dual = jnp.where(value_active >= value_idle, active, idle)
    price = jnp.maximum(0.0, dual * c - r) / (s + _TINY)
    whole = jnp.sqrt(2.0 * delta / (q + _TINY))
    return Plan(
        along_reward=jnp.select([free, recovers], [whole, 0.0], 1.0 / (dual + _TINY)),
        along_cost=jnp.select([free, recovers], [0.0, jnp.sqrt(2.0 * delta / (s + _TINY))], price / (dual + _TINY)),
        within=within,
        recovers=recovers,
    )
