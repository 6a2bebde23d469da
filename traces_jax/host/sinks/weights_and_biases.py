"""Rows for Weights & Biases: one of its runs for each lane, grouped by run folder.

Its own environment variables decide the rest: WANDB_PROJECT (default: traces_jax), WANDB_ENTITY, and WANDB_MODE=offline
for a machine without network or account.
"""

import hashlib
import os
from collections.abc import Mapping
from typing import Any

import wandb

from traces_jax.host import errors
from traces_jax.host.sinks.base import NOT_METRICS, RunInfo, Sink


class WeightsAndBiases(Sink):
    """Continues the same runs when training resumes; rows that they have already are not sent again."""

    def __init__(self, run: RunInfo):
        super().__init__(run)
        try:
            self._runs = {lane: _begun(run, lane) for lane in run.lanes}
        except wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise errors.UserError(
                f"run.sink=wandb cannot begin: {reason}; `wandb login`, WANDB_MODE=offline, or run.sink=none."
            ) from None

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row at its iteration; environment steps are one of its metrics."""
        known = self._runs[row["lane"]]
        if row["iteration"] < known.starting_step:
            return
        metrics = {name: value for name, value in row.items() if name not in NOT_METRICS and value is not None}
        known.log({"steps": row["steps"], **metrics}, step=row["iteration"])

    def close(self) -> None:
        """Waits until everything is sent, or written for `wandb sync`."""
        for known in self._runs.values():
            known.finish()


def _begun(run: RunInfo, lane: str) -> wandb.Run:
    """The run of a lane, new or continued."""
    name = run.folder.resolve().name
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", "traces_jax"),
        group=name,
        name=f"{name} {lane}",
        id=_identity(run, lane),
        resume="allow",
        reinit="create_new",
        dir=str(run.folder),
        config={"lane": lane, **run.config},
        settings=wandb.Settings(silent=True, console="off"),
    )


def _identity(run: RunInfo, lane: str) -> str:
    """The same for a lane whenever its run is resumed, and for no other run."""
    return hashlib.blake2b(f"{run.identity} {lane}".encode(), digest_size=8).hexdigest()
