"""The last finished episodes of a seed: a ring that every constraint is measured on."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.rollout import Truth


@flax.struct.dataclass
class EpisodeWindow:
    """returns, costs: [W], oldest overwritten first; count: [] episodes ever pushed."""

    returns: jax.Array
    costs: jax.Array
    count: jax.Array


def init(size: int) -> EpisodeWindow:
    """An empty window."""
    return EpisodeWindow(returns=jnp.zeros((size,)), costs=jnp.zeros((size,)), count=jnp.zeros((), jnp.int32))


def push(window: EpisodeWindow, truth: Truth) -> EpisodeWindow:
    """Adds the episodes that ended in truth [T, B], in the order of their ends."""
    slot = _slots(truth.ended, window.count, window.costs.shape[0])
    return EpisodeWindow(
        returns=window.returns.at[slot].set(truth.episode_return.reshape(-1), mode="drop"),
        costs=window.costs.at[slot].set(truth.episode_cost.reshape(-1), mode="drop"),
        count=window.count + jnp.sum(truth.ended),
    )


def means(window: EpisodeWindow) -> tuple[jax.Array, jax.Array]:
    """Mean return and mean cost; not a number while no episode has ended."""
    held = jnp.arange(window.costs.shape[0]) < window.count
    return mean_of(window.returns, held), mean_of(window.costs, held)


@flax.struct.dataclass
class Recent:
    """One number of each of the last finished episodes. values: [W]; count: [] episodes ever pushed."""

    values: jax.Array
    count: jax.Array


def recent(size: int) -> Recent:
    """An empty window."""
    return Recent(values=jnp.zeros((size,)), count=jnp.zeros((), jnp.int32))


def push_recent(window: Recent, ended: jax.Array, values: jax.Array) -> Recent:
    """Adds values [T, B] where episodes ended [T, B]."""
    slot = _slots(ended, window.count, window.values.shape[0])
    return Recent(
        values=window.values.at[slot].set(values.reshape(-1), mode="drop"), count=window.count + jnp.sum(ended)
    )


def held(window: Recent) -> jax.Array:
    """[W] which places are filled."""
    return jnp.arange(window.values.shape[0]) < window.count


def running_sum(values: jax.Array, ended: jax.Array) -> jax.Array:
    """Sum of values [T, B] since the episode began, that step included. ended: [T, B]. All began in this rollout."""

    def step(total: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        value, end = inputs
        total += value
        return jnp.where(end, 0.0, total), total

    return lax.scan(step, jnp.zeros(values.shape[1:]), (values, ended))[1]


def mean_of(values: jax.Array, where: jax.Array) -> jax.Array:
    """Mean of the values [...] at places [...]; not a number if there are none."""
    return jnp.sum(jnp.where(where, values, 0.0)) / jnp.sum(where)


def _slots(ended: jax.Array, count: jax.Array, size: int) -> jax.Array:
    """Where in a ring of `size` the episodes that ended [T, B] go, flat; `size` for what goes nowhere."""
    ended = ended.reshape(-1)
    rank = jnp.cumsum(ended) - 1
    # Where more episodes ended than the window holds, only the last ones are written: each slot once.
    write = ended & (rank >= rank[-1] + 1 - size)
    return jnp.where(write, (count + rank) % size, size)


def summary(truth: Truth, limit: jax.Array | float) -> dict[str, jax.Array]:
    """Scalars of the episodes that ended in truth [T, B]; means are not a number when none did."""
    mean = functools.partial(mean_of, where=truth.ended)
    return {
        "episode/return": mean(truth.episode_return),
        "episode/cost": mean(truth.episode_cost),
        "episode/length": mean(truth.episode_length),
        "episode/accepted": mean((truth.episode_cost <= limit).astype(jnp.float32)),
        "episode/count": jnp.sum(truth.ended).astype(jnp.float32),
        "environment/broken": jnp.sum(truth.broken),
    }
