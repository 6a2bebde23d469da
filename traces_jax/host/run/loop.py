"""A training run: the loop around the compiled chunk. `folder` describes its output."""

import contextlib
import functools
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from traces_jax import config as config_lib
from traces_jax.config import Config
from traces_jax.core.learner import LearnerState
from traces_jax.host import cli, errors, hosts, runtime, sinks
from traces_jax.host.data import prior
from traces_jax.host.label import outside
from traces_jax.host.run import announce, checkpoint, evaluation, memory, metrics, progress
from traces_jax.host.run import best as best_lib
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import folder as folder_lib
from traces_jax.host.run.build import Built
from traces_jax.sources import Prior


def train(config: Config, folder: pathlib.Path, *, labels: str = "wait") -> bool:
    """Runs or resumes, then evaluates. Returns whether the run is complete (and not stopped by Ctrl-C).

    labels: where people label, "wait" for them, or "exit" with a `LabelsNeeded`.
    """
    sinks.classes(config)  # What cannot be loaded is refused before the run begins.
    built = build_lib.build(config)
    with hosts.ending_with_the_others():
        hosts.meet(built.program.grid.mesh)
    if forecast := memory.note(config, built.task, len(built.lanes), built.program.grid):
        print(forecast)
    # Only a new run reads the prior. A resumed run has it in its state; the file may be gone by then.
    start = None if _has_begun(folder) else prior.load(config, built.task, print)
    try:
        with hosts.ending_with_the_others(), contextlib.ExitStack() as stack:
            identity = hosts.told(lambda: _enter(stack, config, folder, built))
            if hosts.first():
                print("\n".join(announce.lines(built)), flush=True)
            return _Run(config, folder, built, identity, labels).train(start)
    except errors.WriteError as error:
        reason = str(error).removesuffix(".")
        raise errors.UserError(
            f"{reason}; {_last_good(folder)}; once there is space and permission, the same command resumes."
        ) from None


def _enter(stack: contextlib.ExitStack, config: Config, folder: pathlib.Path, built: Built) -> str | None:
    """Locks and prepares the folder. Returns the run's identity; None for runs of earlier versions."""
    stack.enter_context(folder_lib.locked(folder))
    folder_lib.prepare(config, folder, print)
    identity = folder_lib.identity(folder)
    if identity is None and not _has_begun(folder):
        identity = folder_lib.describe(folder, {**runtime.describe(), "physics": built.physics})
    return identity


class _Run:
    """The part of a run that this process executes."""

    def __init__(self, config: Config, folder: pathlib.Path, built: Built, identity: str | None, labels: str):
        self._config = config
        self._folder = folder
        self._built = built
        self._identity = identity
        self._labels = labels

    def train(self, start: Prior | None) -> bool:
        """Trains until the end or a signal."""
        config = self._config
        with contextlib.ExitStack() as stack:
            checkpoints = checkpoint.Checkpoints(
                self._folder / "checkpoints", identity=self._identity, keep=config.run.keep
            )
            stack.callback(checkpoints.close)
            view = stack.enter_context(
                progress.Progress(config.iterations, config.iteration_steps * len(self._built.lanes))
            )
            stopped = stack.enter_context(_stop_on_signal())
            # Last, so that nothing waits for a process that is gone.
            stack.enter_context(hosts.ending_with_the_others())
            done, state = self._begin(checkpoints, start, view.say)
            if done < config.iterations:
                view.begin(done)
                best = best_lib.Best(
                    self._folder / "best", self._built.program.abstract(), len(self._built.lanes), self._identity
                )
                stack.callback(best.close)
                done, state = self._loop(done, state, checkpoints, best, view, stopped)
                checkpoints.wait()
            view.close()
            if done < config.iterations and not hosts.anywhere(bool(stopped)):
                raise outside.LabelsNeeded(self._folder)
            if done < config.iterations:
                print(f"stopped after iteration {done} of {config.iterations}; the same command resumes from there")
                return False
            self._evaluate(state)
        return True

    def _begin(
        self, checkpoints: checkpoint.Checkpoints, start: Prior | None, say: Callable[[str], None]
    ) -> tuple[int, LearnerState]:
        """Finished iterations, and the state after them."""
        program = self._built.program
        restored = checkpoints.restore_latest(program.abstract(), say)
        if restored is None:
            if (self._folder / "metrics.jsonl").exists():
                say("there is no checkpoint yet; starting again")
            return 0, program.init(start)
        done, state = restored
        if done == self._config.iterations:
            return done, state
        say(f"resuming after iteration {done} of {self._config.iterations}")
        before = folder_lib.description(self._folder).get("devices")
        if before not in (None, jax.device_count()):
            say(
                f"note: the run started with {before} devices and continues with {jax.device_count()}: the last digits "
                f"may differ from those of a run that was not stopped"
            )
        return done, state

    def _loop(
        self,
        done: int,
        state: LearnerState,
        checkpoints: checkpoint.Checkpoints,
        best: best_lib.Best,
        view: progress.Progress,
        stopped: list[int],
    ) -> tuple[int, LearnerState]:
        """Runs chunks; writes rows, checkpoints and progress in between."""
        config, every = self._config, self._config.run.checkpoint_every
        sound = self._sound_iterations(state, done)
        self._check_some_are_sound(sound, done)
        writer = (
            metrics.MetricWriter(self._folder, sound, sinks=self._sinks(list(sound)), say=view.say)
            if hosts.first()
            else None
        )
        labeler = outside.make(self._built, self._folder)
        started = time.monotonic()
        saved = done

        def keep(state: LearnerState) -> None:
            nonlocal saved
            if saved < done:
                checkpoints.save(done, state)
                saved = done

        try:
            while done < config.iterations and not hosts.anywhere(bool(stopped)):
                # Up to the next multiple of run.chunk; an earlier process may have stopped elsewhere with another one.
                length = min(config.run.chunk - done % config.run.chunk, config.iterations - done)
                if labeler is None:
                    state, device_rows = self._built.program.chunk(state, done, length)
                else:
                    wait = outside.Waiting(
                        self._folder, self._labels, stopped, functools.partial(keep, state), view.say
                    )
                    iteration = outside.iteration(self._built, labeler, state, done, wait)
                    if iteration is None:
                        break
                    state, device_rows = iteration
                    length = 1
                rows = {name: np.asarray(values) for name, values in hosts.values(device_rows).items()}
                if writer is not None:
                    seconds = time.monotonic() - started
                    writer.write(done, rows, steps_per_iteration=config.iteration_steps, seconds=seconds)
                sound = self._sound_iterations(state, done + length)
                for lane, iterations in sound.items():
                    if done <= iterations < done + length:
                        view.say(f"{lane} became non-finite in iteration {iterations}; it is not trained any further")
                done += length
                view.update(done, rows)
                self._check_some_are_sound(sound, done)
                if done == config.iterations and writer is not None:
                    # A run whose last state is saved never opens these files again.
                    writer.flush()
                if done % every == 0 or done == config.iterations:
                    best.consider(
                        done,
                        state,
                        rows["constraint/deployed"][:, -1] - rows["constraint/final"][:, -1],
                        rows["window/return"][:, -1],
                    )
                    keep(state)
            keep(state)
        finally:
            if writer is not None:
                writer.close()
            if labeler is not None:
                labeler.close(complete=done == config.iterations)
        return done, state

    def _sinks(self, lanes: list[str]) -> list[sinks.Sink]:
        about = sinks.RunInfo(self._folder, self._identity, lanes, config_lib.to_dict(self._config))
        return [kind(about) for kind in sinks.classes(self._config)]

    def _sound_iterations(self, state: LearnerState, done: int) -> dict[str, int]:
        """For each lane, in how many of the `done` iterations it was finite."""
        diverged = _diverged(state)
        return {
            lane.name: int(iteration) if iteration >= 0 else done
            for lane, iteration in zip(self._built.lanes, diverged, strict=True)
        }

    def _check_some_are_sound(self, sound: dict[str, int], done: int) -> None:
        """Raises an error if every lane has become non-finite."""
        if all(iterations < done for iterations in sound.values()) and done:
            which = ", ".join(f"{lane} in iteration {iterations}" for lane, iterations in sound.items())
            raise errors.UserError(
                f"every lane became non-finite ({which}); {_last_good(self._folder)}; a smaller ppo.actor_lr or "
                f"refit.lr, in another run folder, may help."
            )

    def _evaluate(self, state: LearnerState) -> None:
        """Evaluates the finished run, unless it has an evaluation with at least as many episodes."""
        wanted = self._config.run.evaluation_episodes
        iterations = np.full(len(self._built.lanes), self._config.iterations)
        known = evaluation.closing(self._folder)
        if not wanted or (known and known[0] >= self._config.iterations and known[1] >= wanted):
            print(f"complete: {self._config.iterations} of {self._config.iterations} iterations")
            return
        place = evaluation.place(self._folder, "deployed", None, iterations, wanted, newest=True)
        evaluation.evaluate(self._built, state, place, iterations=iterations, count=wanted, deployed=True)


def _has_begun(folder: pathlib.Path) -> bool:
    """Whether a run has a checkpoint."""
    return bool(_checkpoints(folder))


def _checkpoints(folder: pathlib.Path) -> list[int]:
    """Finished iterations of the checkpoints in a run folder."""
    return checkpoint.iterations(folder / "checkpoints")


def _last_good(folder: pathlib.Path) -> str:
    found = _checkpoints(folder)
    if not found:
        return "no checkpoint was written yet"
    return f"the last good checkpoint is {folder}/checkpoints/{found[-1]}"


def _diverged(state: LearnerState) -> np.ndarray:
    """For each lane, the iteration in which it became non-finite, [S]; -1 if it is finite."""
    return np.asarray(hosts.values(state.diverged))


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """On SIGINT or SIGTERM the loop saves and ends; a second signal ends the process at once.

    It then ends like a killed process, which does not damage the folder. An exception in the middle of a save could
    deadlock its threads.
    """
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        del frame
        if received:
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), b"\x1b[?25h")  # The bar has hidden the cursor.
            os.write(sys.stdout.fileno(), b"\nstopped at once; the same command resumes from the last checkpoint\n")
            os._exit(cli.STOPPED)
        received.append(number)
        os.write(sys.stdout.fileno(), b"\nstopping after this chunk; the state will be saved\n")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
