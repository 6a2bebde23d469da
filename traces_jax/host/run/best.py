"""The best state of each lane so far: the highest return among those that satisfy the constraint."""

import pathlib
from typing import Any

import jax
import numpy as np

from traces_jax.core.learner import LearnerState
from traces_jax.host.run import checkpoint

_NONE = -1
# Where a part of a leaf [S, ...] is in it: the first and last index along every axis. The parts of one process.
Place = tuple[tuple[int | None, int | None], ...]
Parts = dict[Place, np.ndarray]


class Best:
    """Writes `best/`, in which each lane's state may come from a different iteration.

    Whether the constraint is satisfied is the learner's own estimate: with a learned cost, the true one is not used.
    """

    def __init__(self, folder: pathlib.Path, abstract: LearnerState, lanes: int, identity: str | None):
        self._saved = checkpoint.Checkpoints(folder, identity=identity, keep=1)
        self._iterations = np.full(lanes, _NONE)
        self._returns = np.full(lanes, -np.inf)
        self._parts: list[Parts] = []
        restored = self._saved.restore_latest(abstract, lambda text: None) if self._saved.iterations() else None
        if restored is not None:
            notes = self._saved.notes(restored[0])
            # Earlier versions saved all lanes of one iteration, without this note. Those are replaced by the next save.
            if len(notes.get("iterations", ())) == lanes:
                self._iterations, self._returns = np.asarray(notes["iterations"]), np.asarray(notes["returns"])
                self._parts = _to_host(restored[1])

    def consider(self, iteration: int, state: LearnerState, gap: np.ndarray, returns: np.ndarray) -> None:
        """Saves the lanes that are better than before. gap, returns: [S]; a gap above 0 is a violation.

        Blocks until they are on disk, because a run resumed from this iteration's checkpoint must find them.
        """
        better = (gap <= 0) & (returns > self._returns)
        if not better.any():
            return
        new = _to_host(state)
        for held, now in zip(self._parts, new, strict=True) if self._parts else ():
            for place, values in held.items():
                own = better[slice(*place[0])]
                values[own] = now[place][own]
        self._parts = self._parts or new
        self._iterations = np.where(better, iteration, self._iterations)
        self._returns = np.where(better, returns, self._returns)
        self._saved.save(
            iteration,
            _from_host(self._parts, state),
            iterations=self._iterations.tolist(),
            # JSON has no infinity.
            returns=[float(value) for value in np.where(self._iterations == _NONE, np.finfo(float).min, self._returns)],
        )
        self._saved.wait()

    def close(self) -> None:
        """Waits for writes and closes."""
        self._saved.close()


def iterations(notes: dict[str, Any], lanes: int, saved: int) -> np.ndarray:
    """For each lane, the finished iterations of its best state, [S]; -1 if it has none.

    notes: of the checkpoint in `best/`; saved: the number of that checkpoint, used if the notes have no iterations
    (earlier versions).
    """
    known = notes.get("iterations", [])
    return np.asarray(known if len(known) == lanes else [saved] * lanes)


def _to_host(state: LearnerState) -> list[Parts]:
    """A copy of this process's parts of every leaf. The state itself is donated to the next iteration."""
    return [
        {_place(shard.index): np.array(shard.data) for shard in _plain(leaf).addressable_shards}
        for leaf in jax.tree.leaves(state)
    ]


def _from_host(parts: list[Parts], like: LearnerState) -> LearnerState:
    """The whole state on all devices, from the parts that each process has."""

    def leaf(held: Parts, like: jax.Array) -> jax.Array:
        plain = _plain(like)
        values = jax.make_array_from_callback(plain.shape, plain.sharding, lambda index: held[_place(index)])
        return jax.random.wrap_key_data(values) if plain is not like else values

    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, [leaf(held, own) for held, own in zip(parts, leaves, strict=True)])


def _place(index: tuple[slice, ...]) -> Place:
    return tuple((part.start, part.stop) for part in index)


def _plain(leaf: jax.Array) -> jax.Array:
    """A leaf, keys as integers."""
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
