"""Checkpoints of the whole learner state, through orbax. The only file that knows orbax.

A save is written beside and renamed when complete, so a process killed at any moment leaves the checkpoints before it
whole. A checkpoint that cannot be read is set aside, and the one before it is used; a mere reader moves nothing.
"""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

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
            self._manager = ocp.CheckpointManager(self._folder, options=options)

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
            return self._manager.restore(iteration, args=ocp.args.StandardRestore(abstract))

    def restore_latest(self, abstract: Any, say: Callable[[str], None]) -> tuple[int, Any] | None:
        """The newest readable save and its iteration; None when there is none. Of damaged ones it speaks."""
        found = self.iterations()
        for iteration in reversed(found):
            try:
                return iteration, self.restore(abstract, iteration)
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

    def _set_aside(self, iteration: int) -> None:
        damaged = self._folder / str(iteration)
        damaged.rename(self._folder.parent / f"damaged-{self._folder.name}-{iteration}")
        self._manager.reload()
