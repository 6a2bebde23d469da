"""The last finished episodes of a seed: a ring that every constraint is measured on."""

import flax.struct
import jax
import jax.numpy as jnp

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
    size = window.costs.shape[0]
    ended = truth.ended.reshape(-1)
    rank = jnp.cumsum(ended) - 1
    total = rank[-1] + 1
    # Where more episodes ended than the window holds, only the last ones are written: each slot once.
    write = ended & (rank >= total - size)
    slot = jnp.where(write, (window.count + rank) % size, size)
    return EpisodeWindow(
        returns=window.returns.at[slot].set(truth.episode_return.reshape(-1), mode="drop"),
        costs=window.costs.at[slot].set(truth.episode_cost.reshape(-1), mode="drop"),
        count=window.count + total,
    )


def means(window: EpisodeWindow) -> tuple[jax.Array, jax.Array]:
    """Mean return and mean cost; not a number while no episode has ended."""
    held = jnp.minimum(window.count, window.costs.shape[0])
    valid = jnp.arange(window.costs.shape[0]) < held
    mean = lambda values: jnp.sum(jnp.where(valid, values, 0.0)) / held  # noqa: E731
    return mean(window.returns), mean(window.costs)


def summary(truth: Truth, limit: jax.Array | float) -> dict[str, jax.Array]:
    """Scalars of the episodes that ended in truth [T, B]; means are not a number when none did."""
    ended = truth.ended
    number = jnp.sum(ended)
    mean = lambda values: jnp.sum(jnp.where(ended, values, 0.0)) / number  # noqa: E731
    return {
        "episode/return": mean(truth.episode_return),
        "episode/cost": mean(truth.episode_cost),
        "episode/length": mean(truth.episode_length),
        "episode/accepted": mean((truth.episode_cost <= limit).astype(jnp.float32)),
        "episode/count": number.astype(jnp.float32),
        "environment/broken": jnp.sum(truth.broken),
    }
