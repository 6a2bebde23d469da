"""Scalars about labels and cost models, for the metrics rows."""

import math

import jax
import jax.numpy as jnp

from traces_jax.core import episodes
from traces_jax.estimator import credit
from traces_jax.feedback.trajectories import Trajectories


def accepted(rows: Trajectories) -> jax.Array:
    """Fraction of full trajectories that the labeler accepts, []; without those on which annotators disagree."""
    return episodes.mean_of(rows.labels[:, -1], rows.valid & rows.mask[:, -1])


def fit(log_probability: jax.Array, rows: Trajectories, when: str) -> dict[str, jax.Array]:
    """Metrics of log-probabilities [K, P] against the labels of rows [K]."""
    scores = credit.scores(log_probability, rows.labels, rows.mask)
    return {
        f"refit/{when}/loss": credit.cross_entropy(log_probability, rows.labels, rows.mask),
        f"refit/{when}/accuracy": scores.accuracy,
        f"refit/{when}/precision": scores.precision,
        f"refit/{when}/recall": scores.recall,
    }


def uncertainty(
    name: str, values: jax.Array, there: jax.Array, chosen: jax.Array, picked: jax.Array
) -> dict[str, jax.Array]:
    """The uncertainty [N] of a pool, filled where `there` [N], and of its picks; nothing if it has no name.

    chosen, picked: [K] indices in the pool, and which of them were picked.
    """
    if not name:
        return {}
    low, middle, high = jnp.nanquantile(jnp.where(there, values, jnp.nan), jnp.array([0.1, 0.5, 0.9]))
    return {
        f"query/{name}_picked": episodes.mean_of(values[chosen], picked),
        f"query/{name}_pool": episodes.mean_of(values, there),
        f"query/{name}_pool_10": low,
        f"query/{name}_pool_50": middle,
        f"query/{name}_pool_90": high,
    }


def estimate(
    log_probability: jax.Array, rows: Trajectories, cost: jax.Array, true_cost: jax.Array
) -> dict[str, jax.Array]:
    """A cost model on a rollout.

    log_probability: [K] that the episodes that ended, rows [K], are acceptable; cost, true_cost: [T, B] of all steps.
    """
    said = log_probability >= math.log(0.5)
    finished = lambda values: episodes.mean_of(values.astype(jnp.float32), rows.valid)  # noqa: E731
    return {
        "estimate/accepted": finished(said),
        "estimate/probability": finished(jnp.exp(log_probability)),
        "estimate/right": finished(said == (rows.labels[:, -1] > 0)),
        "estimate/cost_where_none": jnp.sum(jnp.where(true_cost == 0, cost, 0.0))
        / jnp.maximum(jnp.sum(true_cost == 0), 1)
        / jnp.maximum(jnp.mean(cost), 1e-12),
    }
