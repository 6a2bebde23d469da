"""Loads saved states of a run, with the program that can run them."""

import dataclasses
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from traces_jax.core.learner import LearnerState
from traces_jax.host import errors
from traces_jax.host.run import best as best_lib
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import checkpoint
from traces_jax.host.run import folder as folder_lib
from traces_jax.host.run.build import Built


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Saved states and the program that can run them.

    Attributes:
      iterations: [S] finished iterations of each lane's state.
      newest: whether these are all lanes of the run at its newest checkpoint.
      deployed: whether these are the policies to deploy. `evaluation.evaluate` puts them into place.
    """

    built: Built
    state: LearnerState
    iterations: np.ndarray
    newest: bool
    deployed: bool

    @property
    def policies(self) -> LearnerState:
        """The states with the policies that were asked for."""
        return self.built.program.learner.deployed(self.state) if self.deployed else self.state


def load(folder: pathlib.Path, step: str, seed: int | None, say: Callable[[str], None]) -> Loaded:
    """A saved state and its program.

    step: "deployed" (the newest policy that satisfied the constraint), "latest", "best" or a number of finished
    iterations; seed: None for all.
    """
    deployed = step == "deployed"
    config = folder_lib.load_config(folder)
    built = build_lib.build(config)
    name = "best" if step == "best" else "checkpoints"
    saved = checkpoint.Checkpoints(folder / name, identity=folder_lib.identity(folder), read_only=True)
    try:
        found = saved.iterations()
        if not found:
            why = "no seed satisfied its constraint at a checkpoint" if name == "best" else "it has no checkpoint"
            raise errors.UserError(f"--step={step} is not possible for run {folder} yet: {why}.")
        if step in ("deployed", "latest", "best"):
            restored = saved.restore_latest(built.program.abstract(), say)
            assert restored is not None
            iteration, state = restored
        elif step.isascii() and step.isdigit() and int(step) in found:
            iteration, state = int(step), _restore(saved, built, int(step))
        else:
            choices = ", ".join(str(number) for number in found)
            raise errors.UserError(f"--step={step} is not right: choose deployed, latest, best or one of {choices}.")
        iterations = np.full(len(built.lanes), iteration)
        if step == "best":
            iterations = best_lib.iterations(saved.notes(iteration), len(built.lanes), iteration)
    finally:
        saved.close()
    wanted = [index for index, lane in enumerate(built.lanes) if seed is None or lane.seed == seed]
    if not wanted:
        seeds = ", ".join(dict.fromkeys(str(lane.seed) for lane in built.lanes))
        raise errors.UserError(f"--seed={seed} is not in run {folder}; choose one of {seeds}.")
    kept = [index for index in wanted if iterations[index] >= 0]
    for index in wanted:
        if index not in kept:
            say(f"{built.lanes[index].name} satisfied its constraint at no checkpoint, so it has no best state.")
    if not kept:
        raise errors.UserError(f"--step=best is not possible for seed {seed} of run {folder}; --step=latest is.")
    if len(kept) == len(built.lanes):
        # The last policy of a run that keeps another one is not its result.
        result = deployed or not config.constraint.keep
        newest = name == "checkpoints" and iteration == found[-1] and result
        return Loaded(built, state, iterations, newest=newest, deployed=deployed)
    chosen = build_lib.build(config, [built.lanes[index] for index in kept])
    state = chosen.program.place(jax.tree.map(lambda leaf: leaf[np.asarray(kept)], state))
    return Loaded(chosen, state, iterations[kept], newest=False, deployed=deployed)


def _restore(saved: checkpoint.Checkpoints, built: Built, iteration: int) -> LearnerState:
    try:
        return saved.restore(built.program.abstract(), iteration)
    except errors.UserError:
        raise
    except Exception as error:  # noqa: BLE001  orbax raises many kinds for a damaged file
        reason = " ".join(str(error).split())[:160]
        raise errors.UserError(f"--step={iteration} is not right: that checkpoint is damaged ({reason}).") from None
