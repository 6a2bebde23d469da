"""Which trajectories have states unlike all that were labelled: SimHash of the states.

A state, normalized by the labelled ones, is hashed to the signs of some random projections. Similar states have similar
signs. A state is new if its hash has not been seen.
"""

import dataclasses

import chex
import flax.struct
import jax
import jax.numpy as jnp

# Normalized states are cut here.
_FARTHEST = 10.0
_SMALLEST_STD = 1e-8


@flax.struct.dataclass
class Seen:
    """What was seen of labelled states.

    Attributes:
      projection: [K, O] fixed random directions, one for each bit.
      count: [] labelled states.
      mean, variance: [O] of the labelled states.
      table: [2^K] which hashes have been seen.
    """

    projection: jax.Array
    count: jax.Array
    mean: jax.Array
    variance: jax.Array
    table: jax.Array


def init(key: jax.Array, *, bits: int, size: int) -> Seen:
    """Nothing seen yet, for states of `size` numbers. key: consumed."""
    return Seen(
        projection=jax.random.normal(key, (bits, size)),
        count=jnp.zeros(()),
        mean=jnp.zeros((size,)),
        variance=jnp.ones((size,)),
        table=jnp.zeros((2**bits,), bool),
    )


def hashes(seen: Seen, states: jax.Array) -> jax.Array:
    """The hash [...] of states [..., O]: bit j is set where projection j is positive."""
    chex.assert_axis_dimension(states, -1, seen.mean.shape[0])
    scaled = (states - seen.mean) / (jnp.sqrt(seen.variance) + _SMALLEST_STD)
    bits = jnp.clip(scaled, -_FARTHEST, _FARTHEST) @ seen.projection.T > 0
    return jnp.sum(jnp.where(bits, 2 ** jnp.arange(seen.projection.shape[0]), 0), axis=-1)


def share(seen: Seen, states: jax.Array, inside: jax.Array) -> jax.Array:
    """Share of new states in each trajectory, [N]; above 0 where it is novel.

    states: [N, T, O]; inside: [N, T] which of them exist.
    """
    chex.assert_shape(inside, states.shape[:-1])
    new = inside & ~seen.table[hashes(seen, states)]
    return jnp.sum(new, axis=-1) / jnp.maximum(jnp.sum(inside, axis=-1), 1)


def add(seen: Seen, states: jax.Array, inside: jax.Array) -> Seen:
    """After states [N, T, O] were labelled, of which those `inside` [N, T] exist. Earlier hashes are not updated."""
    chex.assert_shape(inside, states.shape[:-1])
    added = jnp.sum(inside)
    total = jnp.maximum(seen.count + added, 1.0)
    chosen = inside[..., None]
    mean = (seen.mean * seen.count + jnp.sum(jnp.where(chosen, states, 0.0), axis=(0, 1))) / total
    squares = jnp.sum(jnp.where(chosen, jnp.square(states - mean), 0.0), axis=(0, 1))
    any_added = added > 0
    after = dataclasses.replace(
        seen,
        count=seen.count + added,
        mean=jnp.where(any_added, mean, seen.mean),
        variance=jnp.where(any_added, (seen.variance * seen.count + squares) / total, seen.variance),
    )
    place = jnp.where(inside, hashes(after, states), seen.table.shape[0])
    return dataclasses.replace(after, table=after.table.at[place].set(True, mode="drop"))
