"""Distributes a lane's environments over several devices."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Spread:
    """How a lane's environments are distributed: each device runs its share, then all devices gather the results.

    Attributes:
      axis: name of the mapped device axis; None when one device has all environments.
      shares: number of devices on the axis.
    """

    axis: str | None = None
    shares: int = 1

    def keys(self, key: jax.Array, count: int) -> jax.Array:
        """Keys of this device's share of `count` environments; the last shares are padded to equal length."""
        return jax.vmap(lambda index: jax.random.fold_in(key, index))(self.indices(count))

    def indices(self, count: int) -> jax.Array:
        """Indices of this device's share of `count` environments, padded likewise."""
        own = -(-count // self.shares)
        first = lax.axis_index(self.axis) * own if self.axis else 0
        return first + jnp.arange(own)

    def gather(self, tree: Any) -> Any:
        """Gathers leaves [T, share, ...] of all devices into [T, B, ...]."""
        if self.axis is None:
            return tree
        return jax.tree.map(lambda leaf: lax.all_gather(leaf, self.axis, axis=1, tiled=True), tree)
