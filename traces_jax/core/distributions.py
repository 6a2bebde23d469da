"""The Gaussian policy's log-density, entropy and KL. Only this module uses distrax. Distributions are created and used
inside one function, because distrax objects cannot cross vmap, scan or jit boundaries.
"""

import chex
import distrax
import jax
import jax.numpy as jnp


def _gaussian(mean: jax.Array, log_std: jax.Array) -> distrax.MultivariateNormalDiag:
    chex.assert_equal_shape_suffix([mean, log_std], 1)
    return distrax.MultivariateNormalDiag(mean, jnp.broadcast_to(jnp.exp(log_std), mean.shape))


def log_prob(mean: jax.Array, log_std: jax.Array, action: jax.Array) -> jax.Array:
    """mean, action: [..., A], log_std: [A]. Returns [...], summed over action dimensions."""
    return _gaussian(mean, log_std).log_prob(action)


def entropy(log_std: jax.Array) -> jax.Array:
    """log_std: [A]. Returns the entropy per action dimension, a scalar."""
    return _gaussian(jnp.zeros_like(log_std), log_std).entropy() / log_std.shape[-1]


def kl(old_mean: jax.Array, old_log_std: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """KL(old || new) per sample. means: [..., A], log_stds: [A]. Returns [...]."""
    return _gaussian(old_mean, old_log_std).kl_divergence(_gaussian(mean, log_std))
