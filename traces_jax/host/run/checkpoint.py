"""Checkpoints of the full learner state. The only file that uses orbax.

A save is written under a temporary name and renamed when complete, so a process killed at any moment leaves earlier
checkpoints intact. A damaged checkpoint is renamed if an earlier one can be read; a read-only user renames nothing. An
intact checkpoint with other shapes, or of another run, is not damaged and is never renamed.
"""

import contextlib
import errno
import itertools
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp

from traces_jax.host import errors, hosts

# Stands for an array that is not restored.
LEFT_OUT = object()

# The note that contains the identity of the checkpoint's run.
_RUN = "run"
# Saves are named by their numbers.
_NAMES = ocp.path.step.standard_name_format()


class Checkpoints:
    """Saved states of one run, named by the number of finished iterations.

    identity: of the run; None if unknown, then it is not checked.
    """

    def __init__(self, folder: pathlib.Path, *, identity: str | None, keep: int | None = None, read_only: bool = False):
        self._folder = folder.absolute()
        self._identity = identity
        self._read_only = read_only
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, read_only=read_only, create=not read_only, enable_async_checkpointing=not read_only
        )
        with warnings.catch_warnings(), self._writing():
            warnings.simplefilter("ignore")
            self._manager = ocp.CheckpointManager(
                self._folder, options=options, item_handlers=ocp.StandardCheckpointHandler()
            )

    def save(self, iteration: int, state: Any, **notes: Any) -> None:
        """Copies the state at once and writes it in the background. The caller may donate the state right after.

        notes: JSON values, which `notes` returns.
        """
        with self._writing():
            self._manager.save(
                iteration, args=ocp.args.StandardSave(state), custom_metadata={_RUN: self._identity, **notes}
            )

    def iterations(self) -> list[int]:
        """All complete saves, oldest first."""
        return sorted(self._manager.all_steps())

    def notes(self, iteration: int) -> dict[str, Any]:
        """The notes of a save; empty if it is damaged."""
        try:
            return dict(self._manager.metadata(iteration).custom_metadata or {})
        except Exception:  # noqa: BLE001  orbax raises many kinds for a damaged file
            return {}

    def restore(self, abstract: Any, iteration: int) -> Any:
        """The state saved after `iteration`.

        abstract: a tree of ShapeDtypeStruct with shardings; where it has `LEFT_OUT` instead, nothing is read.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._check_identity(iteration)
            self._check_shapes(abstract, iteration)
            if any(leaf is LEFT_OUT for leaf in jax.tree.leaves(abstract)):
                return self._restore_part(abstract, iteration)
            return self._manager.restore(iteration, args=ocp.args.StandardRestore(abstract))

    def _restore_part(self, abstract: Any, iteration: int) -> Any:
        """Reads the wanted arrays by name, whatever else the save contains."""
        wanted = {name: leaf for name, leaf in _named(abstract).items() if leaf is not LEFT_OUT}
        saved = jax.tree_util.tree_map_with_path(
            lambda path, _: wanted.get(_name(path), LEFT_OUT), self._manager.item_metadata(iteration).tree
        )
        part = _pruned(saved)
        # Orbax's manager restores whole trees only.
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            restored = reader.restore(
                self._folder / str(iteration) / "default",
                args=ocp.args.PyTreeRestore(
                    item=part,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(part),
                    partial_restore=True,
                ),
            )
        found = _named(restored)
        return jax.tree_util.tree_map_with_path(lambda path, leaf: found.get(_name(path), leaf), abstract)

    def restore_latest(self, abstract: Any, say: Callable[[str], None]) -> tuple[int, Any] | None:
        """The newest readable save and its iteration; None if there are no saves. Damaged ones are reported with `say`.

        If none can be read, none is renamed, so that the next try gives the same result.
        """
        damaged: dict[int, str] = {}
        for iteration in reversed(self.iterations()):
            try:
                state = self.restore(abstract, iteration)
            except errors.UserError:
                raise
            except Exception as error:  # noqa: BLE001  orbax raises many kinds for a damaged file
                damaged[iteration] = " ".join(str(error).split())[:160]
                continue
            for number, reason in damaged.items():
                fate = "skipped" if self._read_only else f"set aside as {self._set_aside(number)}"
                say(f"checkpoint {self._folder.name}/{number} is damaged and is {fate} ({reason}).")
            return iteration, state
        if damaged:
            raise errors.UserError(
                f"no checkpoint in {self._folder} can be read; remove the run folder to start again."
            )
        return None

    def wait(self) -> None:
        """Returns when everything saved is on disk."""
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for writes and closes."""
        with self._writing():
            self._manager.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Converts exceptions of orbax and its threads when a save fails into a WriteError."""
        try:
            yield
        except Exception as error:  # depends on where it fails: OSError, tensorstore's ValueError, ...
            if self._read_only or (hosts.together() and isinstance(error, jax.errors.JaxRuntimeError)):
                raise
            raise errors.WriteError(f"{self._folder} cannot be written: {_reason(error)}.") from None

    def _check_identity(self, iteration: int) -> None:
        """Refuses a save of another run. Saves of earlier versions have no identity and are accepted."""
        theirs = self.notes(iteration).get(_RUN)
        if None not in (theirs, self._identity) and theirs != self._identity:
            raise errors.UserError(
                f"checkpoint {self._folder}/{iteration} belongs to another run ({theirs}, not {self._identity}); "
                f"remove it from this folder."
            )

    def _check_shapes(self, abstract: Any, iteration: int) -> None:
        """Refuses a save whose metadata has other array shapes than expected."""
        try:
            saved = _shapes(self._manager.item_metadata(iteration).tree)
        except Exception:  # noqa: BLE001  the metadata is damaged too
            return
        expected = _shapes(abstract)
        wanted = {name for name, shape in expected.items() if shape is not None}
        for name in sorted(wanted if len(wanted) < len(expected) else saved.keys() | expected.keys()):
            if saved.get(name) != expected.get(name):
                there, here = (list(tree[name] or ()) if name in tree else "missing" for tree in (saved, expected))
                raise errors.UserError(
                    f"checkpoint {self._folder}/{iteration} is of another version of this program, or its config.json "
                    f"was changed: {name} is {there} there and {here} here."
                )

    def _set_aside(self, iteration: int) -> str:
        """Renames a damaged save. Returns its new name."""
        name = f"damaged-{self._folder.name}-{iteration}"
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        free = next(name for name in names if not (self._folder.parent / name).exists())
        if hosts.first():
            (self._folder / str(iteration)).rename(self._folder.parent / free)
        hosts.anywhere(True)  # The others go on when it is done.
        self._manager.reload()
        return free


def iterations(folder: pathlib.Path) -> list[int]:
    """All complete saves in a folder, oldest first; without a manager, which several processes must open together."""
    return sorted(found.step for found in _NAMES.find_all(folder)) if folder.is_dir() else []


def _shapes(tree: Any) -> dict[str, tuple[int, ...] | None]:
    """Shapes of all arrays by path; for keys, those of the integers they are saved as; None for `LEFT_OUT`."""

    def shape(leaf: Any) -> tuple[int, ...] | None:
        if leaf is LEFT_OUT:
            return None
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return tuple((jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf).shape)

    return {name: shape(leaf) for name, leaf in _named(tree).items()}


def _named(tree: Any) -> dict[str, Any]:
    """All leaves of a tree by path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))
    return {_name(path): leaf for path, leaf in leaves}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _pruned(tree: Any) -> Any:
    """A tree of dictionaries and lists without the branches in which everything is left out."""
    if isinstance(tree, dict):
        return {name: part for name, branch in tree.items() if (part := _pruned(branch)) is not LEFT_OUT} or LEFT_OUT
    if isinstance(tree, list | tuple):
        return LEFT_OUT if all(_pruned(branch) is LEFT_OUT for branch in tree) else tree
    return tree


def _reason(error: Exception) -> str:
    """Why a save failed, in a few words: the system's message, extracted from tensorstore's long one."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    known = (os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO))
    return next((words for words in known if words in text), text[:160])
