"""Saute: the remaining budget is an observation, and rewards end when it is spent. Then any solver will do.

Saute RL: almost surely safe reinforcement learning using state augmentation (Sootla et al., 2022).
"""

import jax
import jax.numpy as jnp

from traces_jax.config import Config
from traces_jax.core.optimize import Number
from traces_jax.solvers.additive import Additive
from traces_jax.solvers.ppo import PPO
from traces_jax.solvers.trpo import TRPO

# The released program scales the budget for episodes of this length, whatever the task's.
_RELEASED_HORIZON = 1000
# Once the budget is spent, only the sign matters. Normalized observations have the same bound.
LEAST = -5.0
# A budget of zero must not divide.
SMALLEST = 1e-6


class Saute(Additive):
    """Carries z, the share of the budget that is left: z > 0 as long as the discounted cost is below the budget."""

    def carried_size(self, config):
        return 1

    def begin(self, config, count):
        return jnp.ones((count, 1))

    def carry(self, config, carried, cost, budget):
        return spend(carried, cost[:, None], self.whole(config, budget), config.saute.gamma)

    def whole(self, config: Config, budget: Number) -> jax.Array:
        """The budget [] of the discounted cost at the start of an episode. budget: [] of the plain sum."""
        released = config.method.solver_version == "as_released"
        return discounted(budget, config.saute.gamma, _RELEASED_HORIZON if released else self.horizon)

    def shape_reward(self, config, reward, carried):
        return jnp.where(carried[..., 0] > 0.0, reward, config.saute.unsafe_reward)

    def carried_at_end(self, config, carried):
        # The released program resets z before it reads the value of the last state.
        return jnp.ones_like(carried) if config.method.solver_version == "as_released" else carried


class PPOSaute(Saute, PPO):
    """PPO with a budget in its observations."""


class TRPOSaute(Saute, TRPO):
    """TRPO with a budget in its observations."""


def discounted(budget: Number, gamma: Number, horizon: int) -> jax.Array:
    """The budget [] of the discounted cost that corresponds to one of the plain sum over `horizon` steps."""
    return budget * jnp.mean(gamma ** jnp.arange(horizon))


def spend(left: jax.Array, cost: jax.Array, budget: Number, gamma: Number) -> jax.Array:
    """What is left after a step, as a share of the budget: z <- (z - c / b) / gamma. left, cost: any shape.

    The division by gamma replaces the discount: z > 0 after t steps if and only if sum gamma^k c_k < b.
    """
    return jnp.maximum((left - cost / jnp.maximum(budget, SMALLEST)) / gamma, LEAST)
