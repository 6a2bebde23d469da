"""The best state of each lane so far: the highest return among those that satisfy the constraint."""

import pathlib
from typing import Any

import jax
import numpy as np

from traces_jax.core.learner import LearnerState
from traces_jax.host.run import checkpoint

_NONE = -1


class Best:
    """Writes `best/`, in which each lane's state may come from a different iteration.

    Whether the constraint is satisfied is the learner's own estimate: with a learned cost, the true one is not used.
    """

    def __init__(self, folder: pathlib.Path, abstract: LearnerState, lanes: int, identity: str | None):
        self._saved = checkpoint.Checkpoints(folder, identity=identity, keep=1)
        self._iterations = np.full(lanes, _NONE)
        self._returns = np.full(lanes, -np.inf)
        self._state: Any = None
        restored = self._saved.restore_latest(abstract, lambda text: None) if self._saved.iterations() else None
        if restored is not None:
            notes = self._saved.notes(restored[0])
            # Earlier versions saved all lanes of one iteration, without this note. Those are replaced by the next save.
            if len(notes.get("iterations", ())) == lanes:
                self._iterations, self._returns = np.asarray(notes["iterations"]), np.asarray(notes["returns"])
                self._state = _to_host(restored[1])

    def consider(self, iteration: int, state: LearnerState, gap: np.ndarray, returns: np.ndarray) -> None:
        """Saves the lanes that are better than before. gap, returns: [S]; a gap above 0 is a violation.

        Blocks until they are on disk, because a run resumed from this iteration's checkpoint must find them.
        """
        better = (gap <= 0) & (returns > self._returns)
        if not better.any():
            return
        new = _to_host(state)
        if self._state is None:
            self._state = new
        else:
            for held, now in zip(jax.tree.leaves(self._state), jax.tree.leaves(new), strict=True):
                held[better] = now[better]
        self._iterations = np.where(better, iteration, self._iterations)
        self._returns = np.where(better, returns, self._returns)
        self._saved.save(
            iteration,
            _from_host(self._state, state),
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


def _to_host(state: LearnerState) -> Any:
    """A copy in host memory, keys as integers. The state itself is donated to the next iteration."""
    return jax.tree.map(lambda leaf: np.array(jax.random.key_data(leaf) if _is_key(leaf) else leaf), state)


def _from_host(held: Any, like: LearnerState) -> LearnerState:
    return jax.tree.map(lambda leaf, own: jax.random.wrap_key_data(leaf) if _is_key(own) else leaf, held, like)


def _is_key(leaf: jax.Array) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
