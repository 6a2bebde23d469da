"""Whole trajectories, cut out of rollouts and kept in rings of fixed size."""

import dataclasses
from typing import Any, Generic, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np


@flax.struct.dataclass
class Trajectories:
    """N trajectories, some of which may be empty.

    Attributes:
      inputs: [N, T, F] raw observation joined with the action; zeros past the end.
      length: [N] steps; 0 marks an empty place.
      labels: [N, P] 1 where the prefix is not yet violating.
      mask: [N, P] which prefixes there are.
    """

    inputs: jax.Array
    length: jax.Array
    labels: jax.Array
    mask: jax.Array

    @property
    def count(self) -> int:
        """Places, empty ones included."""
        return self.length.shape[0]

    @property
    def valid(self) -> jax.Array:
        """[N] which places are filled."""
        return self.length > 0


@flax.struct.dataclass
class Origin:
    """Where N trajectories come from within their lane: enough to find one again.

    Attributes:
      iteration: [N] of the rollout.
      environment: [N].
      first: [N] step of the rollout with which it begins.
    """

    iteration: jax.Array
    environment: jax.Array
    first: jax.Array


@flax.struct.dataclass
class Candidates:
    """N trajectories that may be labelled.

    watched: [N, T, ...] what the learner was asked to watch of them, such as positions; None for nothing.
    """

    rows: Trajectories
    origin: Origin
    watched: Any

    @property
    def count(self) -> int:
        """Places, empty ones included."""
        return self.rows.count

    @property
    def valid(self) -> jax.Array:
        """[N] which places are filled."""
        return self.rows.valid


Rows = TypeVar("Rows", Trajectories, Candidates)


@flax.struct.dataclass
class Ring(Generic[Rows]):
    """Trajectories of which the oldest are overwritten first. written: [] how many were ever put in."""

    rows: Rows
    written: jax.Array


@flax.struct.dataclass
class Cuts:
    """Where finished episodes lie in a rollout [T, B]; K places.

    Attributes:
      first: [K] time of an episode's first step.
      environment: [K].
      length: [K] steps; 0 where there is no episode.
      dropped: [] episodes for which there was no place.
    """

    first: jax.Array
    environment: jax.Array
    length: jax.Array
    dropped: jax.Array

    def take(self, values: jax.Array, horizon: int) -> jax.Array:
        """The episodes' part of values [T, B, ...], [K, horizon, ...]; zeros past their ends."""
        steps = jnp.arange(horizon)
        times = jnp.minimum(self.first[:, None] + steps, values.shape[0] - 1)
        taken = values[times, self.environment[:, None]]
        inside = steps < self.length[:, None]
        return jnp.where(inside.reshape(inside.shape + (1,) * (taken.ndim - 2)), taken, 0)

    def last(self, values: jax.Array) -> jax.Array:
        """Of values [T, B], those at the episodes' last steps, [K]."""
        return values[jnp.maximum(self.first + self.length - 1, 0), self.environment]


def find(ended: jax.Array, episode_length: jax.Array, places: int) -> Cuts:
    """The first `places` episodes that ended, in the order of their ends.

    ended, episode_length: [T, B]; the latter is read where an episode ended. Episodes began in this rollout.
    """
    environments = ended.shape[1]
    total = jnp.sum(ended)
    (place,) = jnp.nonzero(ended.reshape(-1), size=places, fill_value=0)
    there = jnp.arange(places) < total
    time, environment = place // environments, place % environments
    length = jnp.where(there, episode_length[time, environment].astype(jnp.int32), 0)
    return Cuts(
        first=jnp.where(there, time - length + 1, 0),
        environment=environment,
        length=length,
        dropped=jnp.maximum(total - places, 0),
    )


def empty(count: int, horizon: int, features: int, prefixes: int) -> Ring[Trajectories]:
    """A ring of `count` empty places."""
    return Ring(
        rows=Trajectories(
            inputs=jnp.zeros((count, horizon, features)),
            length=jnp.zeros((count,), jnp.int32),
            labels=jnp.zeros((count, prefixes)),
            mask=jnp.zeros((count, prefixes), bool),
        ),
        written=jnp.zeros((), jnp.int32),
    )


def empty_pool(count: int, horizon: int, features: int, prefixes: int, watched: Any) -> Ring[Candidates]:
    """The same for trajectories that may be labelled. watched: shape and type of what is watched of a step."""
    ring = empty(count, horizon, features, prefixes)
    return Ring(
        rows=Candidates(
            rows=ring.rows,
            origin=Origin(*(jnp.zeros((count,), jnp.int32) for _ in range(3))),
            watched=jax.tree.map(lambda leaf: jnp.zeros((count, horizon, *leaf.shape), leaf.dtype), watched),
        ),
        written=ring.written,
    )


def push(ring: Ring[Rows], rows: Rows) -> Ring[Rows]:
    """Puts in the filled places of `rows`; of more than the ring has places, the last ones."""
    place = ring_places(rows.valid, ring.written, ring.rows.count)
    return Ring(
        rows=jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), ring.rows, rows),
        written=ring.written + jnp.sum(rows.valid),
    )


def ring_places(there: jax.Array, written: jax.Array, size: int) -> jax.Array:
    """Where in a ring of `size` what is there [N] goes, [N]; `size`, which is no place, for what goes nowhere.

    written: [] how many were ever put in. Each place is given once: of two rows written to one place, parts of both
    could remain.
    """
    rank = jnp.cumsum(there) - 1
    kept = there & (rank >= rank[-1] + 1 - size)
    return jnp.where(kept, (written + rank) % size, size)


def clear(ring: Ring[Candidates]) -> Ring[Candidates]:
    """The same ring with all places empty."""
    rows = ring.rows.rows
    emptied = Trajectories(
        inputs=rows.inputs, length=jnp.zeros_like(rows.length), labels=rows.labels, mask=jnp.zeros_like(rows.mask)
    )
    return Ring(rows=dataclasses.replace(ring.rows, rows=emptied), written=jnp.zeros_like(ring.written))


def prefix_ends(horizon: int, interval: int, terminal_only: bool) -> np.ndarray:
    """Lengths of the prefixes that are judged, [P]: every `interval` steps, and last the whole trajectory."""
    inner = [] if terminal_only else list(range(interval, horizon, interval))
    return np.asarray([*inner, horizon])


def at_prefixes(cumulative: jax.Array, length: jax.Array, ends: np.ndarray) -> jax.Array:
    """A cumulative sum [T, N] at the ends [P] of prefixes of trajectories of length [N]. Returns [N, P]."""
    last = jnp.maximum(jnp.minimum(ends, length[:, None]) - 1, 0)
    return cumulative[last, jnp.arange(length.shape[0])[:, None]]


def prefix_mask(length: jax.Array, ends: np.ndarray) -> jax.Array:
    """Which prefixes a trajectory of length [N] has, [N, P]: those that end within it, and itself."""
    inner = ends < length[:, None]
    whole = np.arange(len(ends)) == len(ends) - 1
    return (inner | whole) & (length[:, None] > 0)
