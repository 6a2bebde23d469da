"""Loads saved states of a run, with the program that can run them."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from traces_jax.config import Lane
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
    with opened(folder, step) as saved:
        iteration, state = pick(saved, built.program.abstract(), folder, step, say)
        iterations = lane_iterations(saved, step, iteration, len(built.lanes))
        newest_saved = saved.iterations()[-1]
    kept = chosen_lanes(folder, built.lanes, iterations, seed, say)
    if len(kept) == len(built.lanes):
        # The last policy of a run that keeps another one is not its result.
        result = deployed or not config.constraint.keep
        newest = step != "best" and iteration == newest_saved and result
        return Loaded(built, state, iterations, newest=newest, deployed=deployed)
    chosen = build_lib.build(config, [built.lanes[index] for index in kept])
    state = chosen.program.place(jax.tree.map(lambda leaf: leaf[np.asarray(kept)], state))
    return Loaded(chosen, state, iterations[kept], newest=False, deployed=deployed)


@contextlib.contextmanager
def opened(folder: pathlib.Path, step: str) -> Iterator[checkpoint.Checkpoints]:
    """The saves of a run folder among which the one called `step` is, for reading."""
    saved = checkpoint.Checkpoints(
        folder / ("best" if step == "best" else "checkpoints"), identity=folder_lib.identity(folder), read_only=True
    )
    try:
        yield saved
    finally:
        saved.close()


def pick(
    saved: checkpoint.Checkpoints, abstract: Any, folder: pathlib.Path, step: str, say: Callable[[str], None]
) -> tuple[int, Any]:
    """Number and state of the save called `step`. abstract: see `Checkpoints.restore`."""
    found = saved.iterations()
    if not found:
        why = "no seed satisfied its constraint at a checkpoint" if step == "best" else "it has no checkpoint"
        raise errors.UserError(f"--step={step} is not possible for run {folder} yet: {why}.")
    if step in ("deployed", "latest", "best"):
        restored = saved.restore_latest(abstract, say)
        assert restored is not None
        return restored
    if not (step.isascii() and step.isdigit() and int(step) in found):
        choices = ", ".join(str(number) for number in found)
        raise errors.UserError(f"--step={step} is not right: choose deployed, latest, best or one of {choices}.")
    try:
        return int(step), saved.restore(abstract, int(step))
    except errors.UserError:
        raise
    except Exception as error:  # noqa: BLE001  orbax raises many kinds for a damaged file
        reason = " ".join(str(error).split())[:160]
        raise errors.UserError(f"--step={step} is not right: that checkpoint is damaged ({reason}).") from None


def lane_iterations(saved: checkpoint.Checkpoints, step: str, iteration: int, lanes: int) -> np.ndarray:
    """For each lane, the finished iterations of its state in a save, [S]; -1 if it has none there."""
    if step == "best":
        return best_lib.iterations(saved.notes(iteration), lanes, iteration)
    return np.full(lanes, iteration)


def chosen_lanes(
    folder: pathlib.Path, lanes: Sequence[Lane], iterations: np.ndarray, seed: int | None, say: Callable[[str], None]
) -> list[int]:
    """Places of the lanes with a seed, or of all, that have a state. iterations: [S] from `lane_iterations`."""
    wanted = [index for index, lane in enumerate(lanes) if seed is None or lane.seed == seed]
    if not wanted:
        seeds = ", ".join(dict.fromkeys(str(lane.seed) for lane in lanes))
        raise errors.UserError(f"--seed={seed} is not in run {folder}; choose one of {seeds}.")
    kept = [index for index in wanted if iterations[index] >= 0]
    for index in wanted:
        if index not in kept:
            say(f"{lanes[index].name} satisfied its constraint at no checkpoint, so it has no best state.")
    if not kept:
        raise errors.UserError(f"--step=best is not possible for seed {seed} of run {folder}; --step=latest is.")
    return kept
