"""Labels: of the simulated labeler, who knows the true cost, and of one who names the first violating step.

With a learned cost, only the simulated labeler and the metrics read the true cost.
"""

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.feedback import trajectories


def accepted(
    total_cost: jax.Array, terminated: jax.Array, *, limit: jax.Array | float, early_end_violates: bool
) -> jax.Array:
    """Which trajectories or prefixes are acceptable. This is the definition used everywhere. Returns booleans.

    total_cost: [...] summed cost; terminated: [...] 1 where the trajectory terminated early at that point, else 0.
    early_end_violates: whether early termination is by itself a violation.
    """
    within = total_cost <= limit
    return within & (terminated == 0) if early_end_violates else within


def oracle(
    cost: jax.Array,
    length: jax.Array,
    terminated: jax.Array,
    *,
    limit: jax.Array | float,
    ends: np.ndarray,
    early_end_violates: bool,
) -> jax.Array:
    """Labels [N, P] of all prefixes: 1 for those that are `accepted`.

    cost: [N, T]; length: [N]; terminated: [N] whether the trajectory terminated early; ends: [P].
    """
    total = trajectories.at_prefixes(jnp.cumsum(cost.T, axis=0), length, ends)
    # Termination counts only for the full trajectory, which is the last entry; prefixes stop before it.
    at_end = jnp.zeros(total.shape).at[:, -1].set(terminated)
    return accepted(total, at_end, limit=limit, early_end_violates=early_end_violates).astype(jnp.float32)


def segments(
    cost: jax.Array,
    length: jax.Array,
    terminated: jax.Array,
    *,
    limit: jax.Array | float,
    ends: np.ndarray,
    early_end_violates: bool,
) -> jax.Array:
    """Labels [N, P] of the segments that end at `ends` [P]: 1 for those that are `accepted` by themselves.

    cost: [N, T], zeros past the end; length: [N]; terminated: [N] whether the trajectory terminated early, which
    counts for the segment in which it did.
    """
    total = jnp.concatenate([jnp.zeros_like(cost[:, :1]), jnp.cumsum(cost, axis=1)], axis=1)
    begins = np.concatenate([[0], ends[:-1]])[: len(ends)]
    last = (begins < length[:, None]) & (length[:, None] <= ends)
    return accepted(
        total[:, ends] - total[:, begins],
        jnp.where(last, terminated[:, None], 0),
        limit=limit,
        early_end_violates=early_end_violates,
    ).astype(jnp.float32)


def prefixes(first: jax.Array, length: jax.Array, ends: np.ndarray) -> jax.Array:
    """Labels [N, P] of prefixes: those that end before the first violating step [N] are accepted. -1: all are.

    length: [N]; ends: [P].
    """
    reached = jnp.minimum(ends, length[:, None])
    return ((first[:, None] < 0) | (first[:, None] >= reached)).astype(jnp.float32)


def flip(labels: jax.Array, key: jax.Array, rate: jax.Array | float) -> jax.Array:
    """Flips each label with probability `rate`. key: consumed."""
    flipped = jax.random.bernoulli(key, rate, labels.shape)
    return jnp.where(flipped, 1.0 - labels, labels)
