"""Generalized advantage estimation."""

import chex
import jax
import jax.numpy as jnp
from jax import lax


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    *,
    gamma: jax.Array | float,
    decay: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """Advantages and value targets.

    All arrays: [T, B]. `next_value` is the value of the true next observation, before any reset. A truncated step
    bootstraps from it, a terminated step does not. Neither passes advantages on from the next episode.

    Returns:
      advantage, target = advantage + value, both [T, B].
    """
    chex.assert_rank(reward, 2)
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    delta = reward + gamma * (1.0 - terminated) * next_value - value
    carry_on = gamma * decay * (1.0 - terminated) * (1.0 - truncated)

    def step(after: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta_now, carry_now = inputs
        advantage = delta_now + carry_now * after
        return advantage, advantage

    _, advantage = lax.scan(step, jnp.zeros_like(delta[0]), (delta, carry_on), reverse=True)
    return advantage, advantage + value


def standardize(advantage: jax.Array) -> jax.Array:
    """Normalizes to zero mean and unit population standard deviation over the whole batch."""
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)


def center(advantage: jax.Array) -> jax.Array:
    """Subtracts the mean. The scale is kept, because the multiplier weighs it."""
    return advantage - jnp.mean(advantage)
