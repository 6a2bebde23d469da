"""Which trajectories are worth a label."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.feedback.trajectories import Candidates


def due(share: float, count: jax.Array) -> jax.Array:
    """The whole number nearest to a share of count [], []; halves go up.

    Taken of all that there was so far, not of each part: so a share holds over a run, however small the parts are.
    """
    return jnp.floor(share * count + 0.5).astype(jnp.int32)


def newly_due(share: float, before: jax.Array, after: jax.Array) -> jax.Array:
    """By how much `due` rises while the count goes from before [] to after [], []."""
    return due(share, after) - due(share, before)


def mixed(uncertainty: jax.Array, chance: jax.Array, certain: jax.Array | int) -> jax.Array:
    """Scores [N] by which `pick` takes the `certain` most uncertain first, then others in random order.

    uncertainty: [N], minus infinity for those that must not be taken; chance: [N] uniform in [0, 1); certain: [].
    """
    place = jnp.argsort(jnp.argsort(-uncertainty))
    score = jnp.where(place < certain, 1.0 + uncertainty.shape[0] - place, chance)
    return jnp.where(jnp.isfinite(uncertainty), score, -jnp.inf)


def pick(pool: Candidates, score: jax.Array, count: int, allowed: jax.Array) -> tuple[Candidates, jax.Array]:
    """The `count` trajectories of highest score [N], best first, and their places [count] in the pool.

    Those beyond `allowed` [] stay empty.
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
