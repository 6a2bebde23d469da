"""A ring buffer of the last finished episodes of a seed, on which constraints are measured."""

import functools
from collections.abc import Iterable

import chex
import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.config import Config
from traces_jax.core.rollout import Truth
from traces_jax.feedback import trajectories


@flax.struct.dataclass
class EpisodeWindow:
    """Named values of each episode. values: [W] by name, oldest overwritten first; count: [] episodes ever pushed."""

    values: dict[str, jax.Array]
    count: jax.Array

    @property
    def size(self) -> int:
        """Capacity, including empty slots."""
        return next(iter(self.values.values())).shape[0]


def init(size: int, names: Iterable[str]) -> EpisodeWindow:
    """An empty window for the named values."""
    return EpisodeWindow(values={name: jnp.zeros((size,)) for name in names}, count=jnp.zeros((), jnp.int32))


def push(window: EpisodeWindow, ended: jax.Array, **values: jax.Array) -> EpisodeWindow:
    """Adds the episodes that ended [T, B], in the order of their ends. values: [T, B], read where an episode ended."""
    assert values.keys() == window.values.keys(), (sorted(values), sorted(window.values))
    chex.assert_equal_shape([ended, *values.values()])
    slot = trajectories.ring_places(ended.reshape(-1), window.count, window.size)
    return EpisodeWindow(
        values={name: old.at[slot].set(values[name].reshape(-1), mode="drop") for name, old in window.values.items()},
        count=window.count + jnp.sum(ended),
    )


def means(window: EpisodeWindow) -> dict[str, jax.Array]:
    """Means by name; NaN while no episode has ended."""
    held = jnp.arange(window.size) < window.count
    return {name: mean_of(values, held) for name, values in window.values.items()}


@flax.struct.dataclass
class PolicyWindows:
    """The last episodes of the policy that explores, and of the same policy with its mean action."""

    noisy: EpisodeWindow
    mean: EpisodeWindow

    def deployed(self, policy: str) -> EpisodeWindow:
        """Episodes of the policy that is deployed. policy: see `constraint.policy`."""
        return self.noisy if policy == "noisy" else self.mean


def init_windows(noisy: int, mean: int, names: Iterable[str]) -> PolicyWindows:
    """Empty windows of these sizes."""
    names = tuple(names)
    return PolicyWindows(noisy=init(noisy, names), mean=init(mean, names))


def push_windows(windows: PolicyWindows, ended: jax.Array, plays_mean: jax.Array, **values: jax.Array) -> PolicyWindows:
    """Adds the episodes that ended [T, B] to the window of their policy. plays_mean: [B]; values: see `push`."""
    return PolicyWindows(
        noisy=push(windows.noisy, ended & ~plays_mean, **values), mean=push(windows.mean, ended & plays_mean, **values)
    )


def worse(noisy: jax.Array, mean: jax.Array, policy: str) -> jax.Array:
    """Of two measures [] of which more is worse, that of the policy that must satisfy the constraint.

    policy: see `constraint.policy`.
    """
    if policy == "both":
        return jnp.maximum(noisy, mean)
    return noisy if policy == "noisy" else mean


def constrained(noisy: jax.Array, mean: jax.Array, config: Config, iteration: jax.Array) -> jax.Array:
    """The measure [] that the policy update acts on, of those of the policy that explores and of its mean action.

    With "both", the mean action counts more and more. Only noisy episodes carry a gradient, and while the noise is
    large the mean action may differ much from them: pressure for its sake would only cost return.
    """
    of = functools.partial(worse, noisy, mean)
    if config.constraint.policy != "both":
        return of(policy=config.constraint.policy)
    return noisy + iteration / config.iterations * (of(policy="both") - noisy)


def both(windows: PolicyWindows, name: str) -> jax.Array:
    """Means [2] of named values: of the policy that explores, and of its mean action."""
    return jnp.stack([means(windows.noisy)[name], means(windows.mean)[name]])


def running_sum(values: jax.Array, ended: jax.Array, before: jax.Array | None = None) -> jax.Array:
    """Sum of values [T, B] since the start of the episode, this step included. ended: [T, B].

    before: [B] sums of the episodes that were open before this rollout; None if there were none.
    """

    def step(total: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        value, end = inputs
        total += value
        return jnp.where(end, 0.0, total), total

    start = jnp.zeros(values.shape[1:]) if before is None else before
    return lax.scan(step, start, (values, ended))[1]


def running_sums(values: dict[str, jax.Array], ended: jax.Array, before: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The same by name. before: by name; empty if no episode was open."""
    return {name: running_sum(value, ended, before.get(name)) for name, value in values.items()}


def mean_of(values: jax.Array, where: jax.Array) -> jax.Array:
    """Mean of the values [...] where the mask [...] is set; NaN if it is empty."""
    return jnp.sum(jnp.where(where, values, 0.0)) / jnp.sum(where)


def summary(truth: Truth, accepted: jax.Array, plays_mean: jax.Array) -> dict[str, jax.Array]:
    """Scalars of the episodes that ended in truth [T, B]; means are NaN if none did.

    "episode/..." are of the policy that explores, "deployed/..." of the mean action. accepted: [T, B], read where an
    episode ended; plays_mean: [B].
    """

    def of(name: str, ended: jax.Array) -> dict[str, jax.Array]:
        mean = functools.partial(mean_of, where=ended)
        return {
            f"{name}/return": mean(truth.episode_return),
            f"{name}/cost": mean(truth.episode_cost),
            f"{name}/length": mean(truth.episode_length),
            f"{name}/accepted": mean(accepted.astype(jnp.float32)),
            f"{name}/count": jnp.sum(ended).astype(jnp.float32),
        }

    return {
        **of("episode", truth.ended & ~plays_mean),
        **of("deployed", truth.ended & plays_mean),
        "environment/broken": jnp.sum(truth.broken),
    }
