"""Selection of the trajectories to label."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.feedback.trajectories import Candidates


def due(share: float, count: jax.Array) -> jax.Array:
    """The integer nearest to share * count [], rounding halves up, [].

    count is the total so far, not the size of one part. So the share holds over a run even if each part is small.
    """
    return jnp.floor(share * count + 0.5).astype(jnp.int32)


def newly_due(share: float, before: jax.Array, after: jax.Array) -> jax.Array:
    """The increase of `due` when the count rises from before [] to after [], []."""
    return due(share, after) - due(share, before)


def mixed(uncertainty: jax.Array, chance: jax.Array, certain: jax.Array | int) -> jax.Array:
    """Scores [N] with which `pick` takes the `certain` [] most uncertain first, then others in random order.

    uncertainty: [N], minus infinity for those that must not be picked; chance: [N] uniform in [0, 1).
    """
    place = jnp.argsort(jnp.argsort(-uncertainty))
    score = jnp.where(place < certain, 1.0 + uncertainty.shape[0] - place, chance)
    return jnp.where(jnp.isfinite(uncertainty), score, -jnp.inf)


def pick(pool: Candidates, score: jax.Array, count: int, allowed: jax.Array) -> tuple[Candidates, jax.Array]:
    """The `count` trajectories with the highest scores [N], best first, and their indices [count] in the pool.

    Those beyond the first `allowed` [] are empty.
    """
    best, chosen = lax.top_k(jnp.where(pool.valid, score, -jnp.inf), count)
    taken = jnp.isfinite(best) & (jnp.arange(count) < allowed)
    found: Candidates = jax.tree.map(lambda leaf: leaf[chosen], pool)
    rows = dataclasses.replace(
        found.rows,
        length=jnp.where(taken, found.rows.length, 0),
        mask=found.rows.mask & taken[:, None],
    )
    return dataclasses.replace(found, rows=rows), chosen
