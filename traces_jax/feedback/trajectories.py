"""Full trajectories, extracted from rollouts and kept in ring buffers of fixed size."""

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
      length: [N] steps; 0 marks an empty slot.
      labels: [N, P] 1 where the prefix is not yet violating.
      mask: [N, P] which prefixes exist.
    """

    inputs: jax.Array
    length: jax.Array
    labels: jax.Array
    mask: jax.Array

    @property
    def count(self) -> int:
        """Capacity, including empty slots."""
        return self.length.shape[0]

    @property
    def valid(self) -> jax.Array:
        """[N] which slots are filled."""
        return self.length > 0


@flax.struct.dataclass
class Shown:
    """What a labeler sees of N trajectories: everything but costs and rewards.

    Attributes:
      observation: [N, T, O] raw, before each step; zeros past the end.
      action: [N, T, A].
      length: [N] steps; 0 marks an empty slot.
      positions: [N, T, nq] of the simulator after each step; None for tasks without one and for recorded data.
    """

    observation: jax.Array
    action: jax.Array
    length: jax.Array
    positions: Any = None


@flax.struct.dataclass
class Origin:
    """Where N trajectories come from within their lane: enough to identify each one.

    Attributes:
      iteration: [N] of the rollout.
      environment: [N].
      first: [N] step of the rollout at which the trajectory starts.
    """

    iteration: jax.Array
    environment: jax.Array
    first: jax.Array


@flax.struct.dataclass
class Candidates:
    """N trajectories that may be labelled.

    watched: [N, T, ...] output of the learner's `watch` for them, such as positions; None without `watch`.
    """

    rows: Trajectories
    origin: Origin
    watched: Any

    @property
    def count(self) -> int:
        """Capacity, including empty slots."""
        return self.rows.count

    @property
    def valid(self) -> jax.Array:
        """[N] which slots are filled."""
        return self.rows.valid


Rows = TypeVar("Rows", Trajectories, Candidates)


@flax.struct.dataclass
class Ring(Generic[Rows]):
    """A ring buffer of trajectories; the oldest are overwritten first. written: [] how many were ever written."""

    rows: Rows
    written: jax.Array


@flax.struct.dataclass
class Cuts:
    """Positions of finished episodes in a rollout [T, B]; K slots.

    Attributes:
      first: [K] time of an episode's first step.
      environment: [K].
      length: [K] steps; 0 where there is no episode.
      dropped: [] episodes beyond the K slots.
    """

    first: jax.Array
    environment: jax.Array
    length: jax.Array
    dropped: jax.Array

    def take(self, values: jax.Array, horizon: int) -> jax.Array:
        """The values [T, B, ...] of each episode, [K, horizon, ...]; zeros past its end."""
        steps = jnp.arange(horizon)
        times = jnp.minimum(self.first[:, None] + steps, values.shape[0] - 1)
        taken = values[times, self.environment[:, None]]
        inside = steps < self.length[:, None]
        return jnp.where(inside.reshape(inside.shape + (1,) * (taken.ndim - 2)), taken, 0)

    def last(self, values: jax.Array) -> jax.Array:
        """The values [T, B] at each episode's last step, [K]."""
        return values[jnp.maximum(self.first + self.length - 1, 0), self.environment]


def find(ended: jax.Array, episode_length: jax.Array, places: int) -> Cuts:
    """The first `places` episodes that ended, in the order of their ends.

    ended, episode_length: [T, B]; the latter is read where an episode ended. Episodes must start in this rollout.
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
    """A ring of `count` empty slots."""
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
    """The same for trajectories that may be labelled. watched: shapes and dtypes of `watch`'s output for one step."""
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
    """Writes the filled slots of `rows` to the ring. If they exceed its capacity, only the last ones are written."""
    place = ring_places(rows.valid, ring.written, ring.rows.count)
    return Ring(
        rows=jax.tree.map(lambda old, new: old.at[place].set(new, mode="drop"), ring.rows, rows),
        written=ring.written + jnp.sum(rows.valid),
    )


def ring_places(there: jax.Array, written: jax.Array, size: int) -> jax.Array:
    """The slot in a ring of `size` for each row that is `there` [N], [N]. Rows that are not written get `size`.

    written: [] how many were ever written. No slot is given twice: two rows written to the same slot could mix.
    """
    rank = jnp.cumsum(there) - 1
    kept = there & (rank >= rank[-1] + 1 - size)
    return jnp.where(kept, (written + rank) % size, size)


def clear(ring: Ring[Candidates]) -> Ring[Candidates]:
    """The same ring with all slots empty."""
    rows = ring.rows.rows
    emptied = Trajectories(
        inputs=rows.inputs, length=jnp.zeros_like(rows.length), labels=rows.labels, mask=jnp.zeros_like(rows.mask)
    )
    return Ring(rows=dataclasses.replace(ring.rows, rows=emptied), written=jnp.zeros_like(ring.written))


def prefix_ends(horizon: int, interval: int, terminal_only: bool) -> np.ndarray:
    """Lengths of the labelled prefixes, [P]: every `interval` steps, and last the full trajectory."""
    inner = [] if terminal_only else list(range(interval, horizon, interval))
    return np.asarray([*inner, horizon])


def at_prefixes(cumulative: jax.Array, length: jax.Array, ends: np.ndarray) -> jax.Array:
    """A cumulative sum [T, N] at the ends [P] of prefixes of trajectories of length [N]. Returns [N, P]."""
    last = jnp.maximum(jnp.minimum(ends, length[:, None]) - 1, 0)
    return cumulative[last, jnp.arange(length.shape[0])[:, None]]


def inside(rows: Trajectories) -> jax.Array:
    """Which steps exist, [N, T]."""
    return jnp.arange(rows.inputs.shape[1]) < rows.length[:, None]


def prefix_mask(length: jax.Array, ends: np.ndarray) -> jax.Array:
    """Which prefixes a trajectory of length [N] has, [N, P]: those that end within it, and the full trajectory."""
    inner = ends < length[:, None]
    whole = np.arange(len(ends)) == len(ends) - 1
    return (inner | whole) & (length[:, None] > 0)


def first_true(flags: jax.Array, length: jax.Array) -> jax.Array:
    """The first step within length [N] at which flags [N, T] is set, [N]; -1 if there is none."""
    found = flags & (jnp.arange(flags.shape[1]) < length[:, None])
    return jnp.where(jnp.any(found, axis=1), jnp.argmax(found, axis=1), -1)
