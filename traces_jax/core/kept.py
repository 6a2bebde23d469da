"""The policy to deploy: the newest one that satisfied the constraint in training.

Runs end wherever the multiplier's swing is. The last policy would be a draw from it.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.core.batch import Normalizers


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
      gap: [] measure minus limit of the constraint then; above 0 for a policy that violates it.
    """

    policy: Policy
    iteration: jax.Array
    gap: jax.Array


def init(policy: Policy) -> Kept:
    """Keeps the first policy until there is a measure."""
    return Kept(policy=policy, iteration=jnp.zeros((), jnp.int32), gap=jnp.full((), jnp.inf, jnp.float32))


def update(kept: Kept, policy: Policy, iteration: jax.Array, gap: jax.Array, fresh: jax.Array) -> Kept:
    """Replaces the kept policy by the one that played in this iteration, if that one satisfies the constraint.

    While none has satisfied it, the one with the smallest gap is kept. gap: [], NaN while there is no measure; fresh:
    [] whether it was measured in this iteration. If not, it says nothing of this policy.
    """
    better = fresh & ((gap <= 0) | (gap <= kept.gap))
    found = Kept(policy=policy, iteration=iteration, gap=gap)
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, kept)
