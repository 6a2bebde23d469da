"""The policy to deploy: the newest one that satisfied the constraint in training.

Runs end wherever the multiplier's swing is. The last policy would be a draw from it. The constraint must be satisfied
with a margin, because it is measured on few episodes.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.core.batch import Normalizers

# In tolerances, see `Verdict`.
_MARGIN = 0.5


@flax.struct.dataclass
class Policy:
    """All that a policy needs to act.

    Attributes:
      actor: its parameters.
      normalizers: the statistics of its inputs.
      learned: what the cost source has learned, such as the estimator whose memory the actor reads.
    """

    actor: Any
    normalizers: Normalizers
    learned: Any


@flax.struct.dataclass
class Kept:
    """A policy, and when it was kept.

    Attributes:
      policy: the policy that played.
      iteration: [] iterations finished before it played.
      gap: [] measure minus limit of the constraint then, plus the margin; above 0 for a policy without it.
    """

    policy: Policy
    iteration: jax.Array
    gap: jax.Array


def init(policy: Policy) -> Kept:
    """Keeps the first policy until there is a measure."""
    return Kept(policy=policy, iteration=jnp.zeros((), jnp.int32), gap=jnp.full((), jnp.inf, jnp.float32))


def gap(measure: jax.Array, limit: jax.Array, tolerance: jax.Array) -> jax.Array:
    """How far [] the measure of the policy to deploy is from satisfying the constraint with a margin."""
    return measure - (limit - _MARGIN * tolerance)


def update(kept: Kept, policy: Policy, iteration: jax.Array, gap: jax.Array, fresh: jax.Array) -> Kept:
    """Replaces the kept policy by the one that played in this iteration, if that one satisfies the constraint.

    While none has satisfied it, the one with the smallest gap is kept. gap: [], NaN while there is no measure; fresh:
    [] whether it was measured in this iteration. If not, it says nothing of this policy.
    """
    better = fresh & ((gap <= 0) | (gap <= kept.gap))
    found = Kept(policy=policy, iteration=iteration, gap=gap)
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, kept)
