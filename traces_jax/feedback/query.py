"""Which trajectories are worth a label."""

import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.feedback.trajectories import Trajectories


def pick(pool: Trajectories, score: jax.Array, count: int, allowed: jax.Array) -> Trajectories:
    """The `count` trajectories of highest score [N], best first; places beyond `allowed` [] stay empty."""
    best, chosen = lax.top_k(jnp.where(pool.valid, score, -jnp.inf), count)
    taken = jnp.isfinite(best) & (jnp.arange(count) < allowed)
    rows: Trajectories = jax.tree.map(lambda leaf: leaf[chosen], pool)
    return Trajectories(
        inputs=rows.inputs,
        length=jnp.where(taken, rows.length, 0),
        labels=rows.labels,
        mask=rows.mask & taken[:, None],
    )
