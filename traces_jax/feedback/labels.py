"""The labeler that knows the true cost: the only reader of it besides the metrics."""

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.feedback import trajectories


def oracle(
    cost: jax.Array,
    length: jax.Array,
    terminated: jax.Array,
    *,
    limit: jax.Array | float,
    ends: np.ndarray,
    early_end_violates: bool,
) -> jax.Array:
    """Labels [N, P] of all prefixes: 1 while the summed cost is at most the limit.

    cost: [N, T]; length: [N]; terminated: [N] whether the trajectory ended for good before its time; ends: [P]. An
    early end may by itself make the whole trajectory violating.
    """
    total = trajectories.at_prefixes(jnp.cumsum(cost.T, axis=0), length, ends)
    labels = (total <= limit).astype(jnp.float32)
    if early_end_violates:
        labels = labels.at[:, -1].multiply(1.0 - terminated)
    return labels


def flip(labels: jax.Array, key: jax.Array, rate: jax.Array | float) -> jax.Array:
    """Each label turned over with probability `rate`. key: consumed."""
    flipped = jax.random.bernoulli(key, rate, labels.shape)
    return jnp.where(flipped, 1.0 - labels, labels)
