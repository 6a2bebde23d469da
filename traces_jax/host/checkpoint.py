"""Checkpoints of the whole learner state, through orbax. The only file that knows orbax.

A save is written beside and renamed when complete, so a process killed at any moment leaves the checkpoints before it
whole. A checkpoint that cannot be read is set aside, and the one before it is used; a mere reader moves nothing. One
that is whole but of another program's shapes is not damaged: nobody moves it.
"""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp

from traces_jax.host import errors


class Checkpoints:
    """Saved states of one run, named by the number of finished iterations."""

    def __init__(self, folder: pathlib.Path, *, keep: int | None = None, read_only: bool = False):
        self._folder = folder.absolute()
        self._read_only = read_only
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, read_only=read_only, create=not read_only, enable_async_checkpointing=not read_only
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._manager = ocp.CheckpointManager(
                self._folder, options=options, item_handlers=ocp.StandardCheckpointHandler()
            )

    def save(self, iteration: int, state: Any) -> None:
        """Copies the state at once and writes it in the background; the caller may donate the state right after."""
        self._manager.save(iteration, args=ocp.args.StandardSave(state))

    def iterations(self) -> list[int]:
        """All complete saves, oldest first."""
        return sorted(self._manager.all_steps())

    def restore(self, abstract: Any, iteration: int) -> Any:
        """The state saved after `iteration`. abstract: a tree of ShapeDtypeStruct with shardings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._check_shapes(abstract, iteration)
            return self._manager.restore(iteration, args=ocp.args.StandardRestore(abstract))

    def restore_latest(self, abstract: Any, say: Callable[[str], None]) -> tuple[int, Any] | None:
        """The newest readable save and its iteration; None when there is none. Of damaged ones it speaks."""
        found = self.iterations()
        for iteration in reversed(found):
            try:
                return iteration, self.restore(abstract, iteration)
            except errors.UserError:
                raise
            except Exception as error:  # noqa: BLE001  orbax raises many kinds for a damaged file
                reason = " ".join(str(error).split())[:160]
                fate = "passed over" if self._read_only else "set aside"
                say(f"checkpoint {self._folder.name}/{iteration} is damaged and is {fate} ({reason}).")
                if not self._read_only:
                    self._set_aside(iteration)
        if found:
            raise errors.UserError(
                f"no checkpoint in {self._folder} can be read; remove the run folder to start again."
            )
        return None

    def wait(self) -> None:
        """Returns when everything saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits and lets go."""
        self._manager.close()

    def _check_shapes(self, abstract: Any, iteration: int) -> None:
        """Refuses a save whose own description has other arrays than are expected of it."""
        try:
            saved = _shapes(self._manager.item_metadata(iteration).tree)
        except Exception:  # noqa: BLE001  the description is damaged too
            return
        expected = _shapes(abstract)
        for name in sorted(saved.keys() | expected.keys()):
            if saved.get(name) != expected.get(name):
                there, here = (list(tree[name]) if name in tree else "missing" for tree in (saved, expected))
                raise errors.UserError(
                    f"checkpoint {self._folder}/{iteration} is of another version of this program, or its config.json "
                    f"was changed: {name} is {there} there and {here} here."
                )

    def _set_aside(self, iteration: int) -> None:
        damaged = self._folder / str(iteration)
        damaged.rename(self._folder.parent / f"damaged-{self._folder.name}-{iteration}")
        self._manager.reload()


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of all arrays by their paths; of keys, those of the numbers they are saved as."""

    def shape(leaf: Any) -> tuple[int, ...]:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return tuple((jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf).shape)

    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))
    return {jax.tree_util.keystr(path, simple=True, separator="."): shape(leaf) for path, leaf in leaves}
