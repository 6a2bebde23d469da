"""A training run: the loop around the compiled chunk, and the folder it leaves behind.

config.json     the resolved config             metrics.jsonl   a row for each lane and iteration
run.json        command, versions, device       tensorboard/    the same for eyes
checkpoints/    whole states, the newest few    best/           the best state within the cost limit
evaluation.json what `evaluate` found           evaluation.npz  every episode behind it
diagnostics.npz episodes step by step, with their credits
"""

import contextlib
import dataclasses
import json
import pathlib
import signal
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from traces_jax import config as config_lib
from traces_jax.config import Config
from traces_jax.host import build as build_lib
from traces_jax.host import checkpoint, errors, evaluation, files, metrics, prior, progress, runtime
from traces_jax.learner import LearnerState
from traces_jax.sources import Prior

# Fields that say how a run is watched, or what happened before it, not what it computes; they may change when it is
# resumed.
_FREE_TO_CHANGE = ("run", "collect", "pretrain")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A saved state and the program that can run it."""

    built: build_lib.Built
    state: LearnerState
    iteration: int


def train(config: Config, folder: pathlib.Path) -> bool:
    """Runs or resumes, then evaluates. Returns whether the run is complete (and not stopped by Ctrl-C)."""
    built = build_lib.build(config)
    # Only a run that begins reads it: one that goes on has it in its state, and may outlive the file.
    start = None if _has_begun(folder) else prior.load(config, built.task, print)
    prepare_folder(config, folder)
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", keep=config.run.keep)
    best = checkpoint.Checkpoints(folder / "best", keep=1)
    try:
        with (
            progress.Progress(config.iterations, config.iteration_steps * len(built.lanes)) as view,
            _stop_on_signal() as stopped,
        ):
            return _loop(config, folder, built, start, checkpoints, best, view, stopped)
    finally:
        checkpoints.close()
        best.close()


def _loop(config: Config, folder, built, start: Prior | None, checkpoints, best, view, stopped) -> bool:
    program, length = built.program, config.run.chunk
    restored = checkpoints.restore_latest(program.abstract(), view.say)
    done, state = restored if restored else (0, program.init(start))
    if done:
        view.say(f"resuming after iteration {done} of {config.iterations}")
    view.begin(done)
    if done == 0:
        files.write_text(folder / "run.json", json.dumps({**runtime.describe(), "physics": built.physics}, indent=2))
    writer = metrics.MetricWriter(
        folder, [lane.name for lane in built.lanes], tensorboard=config.run.tensorboard, iterations_done=done
    )
    best_return = _best_so_far(folder / "metrics.jsonl", best.iterations())
    started = time.monotonic()
    saved = done
    try:
        while done < config.iterations and not stopped:
            state, device_rows = program.chunk(state, done, length)
            rows = {name: np.asarray(values) for name, values in jax.device_get(device_rows).items()}
            if not np.all(rows["finite"]):
                raise errors.UserError(_diverged(rows, built, done, folder, checkpoints))
            writer.write(done, rows, steps_per_iteration=config.iteration_steps, seconds=time.monotonic() - started)
            done += length
            view.update(done, rows)
            # As far as the learner itself knows: with a learned cost, the true one has no say in what is kept.
            if np.all(rows["constraint/gap"][:, -1] <= 0):
                mean_return = float(np.mean(rows["window/return"][:, -1]))
                if mean_return > best_return and done % config.run.checkpoint_every == 0:
                    best_return = mean_return
                    best.save(done, state)
            if done % config.run.checkpoint_every == 0 or done == config.iterations:
                checkpoints.save(done, state)
                saved = done
        if saved < done:
            checkpoints.save(done, state)
    finally:
        writer.close()
    if done < config.iterations:
        return False
    checkpoints.wait()
    if config.run.evaluation_episodes:
        view.close()
        evaluation.evaluate(built, state, folder, iteration=done, count=config.run.evaluation_episodes)
    return True


def load(folder: pathlib.Path, step: str, seed: int | None, say: Callable[[str], None]) -> Loaded:
    """A saved state ready to act. step: "latest", "best" or a number of finished iterations; seed: one, or all."""
    config = load_config(folder)
    built = build_lib.build(config)
    name = "best" if step == "best" else "checkpoints"
    saved = checkpoint.Checkpoints(folder / name, read_only=True)
    try:
        found = saved.iterations()
        if not found:
            raise errors.UserError(f"run {folder} has no checkpoint in {name}/ yet.")
        if step in ("latest", "best"):
            restored = saved.restore_latest(built.program.abstract(), say)
            assert restored is not None
            iteration, state = restored
        elif step.isdigit() and int(step) in found:
            iteration, state = int(step), saved.restore(built.program.abstract(), int(step))
        else:
            choices = ", ".join(str(number) for number in found)
            raise errors.UserError(f"--step={step} is not right: choose latest, best or one of {choices}.")
    finally:
        saved.close()
    if seed is None:
        return Loaded(built, state, iteration)
    wanted = [index for index, lane in enumerate(built.lanes) if lane.seed == seed]
    if not wanted:
        seeds = ", ".join(dict.fromkeys(str(lane.seed) for lane in built.lanes))
        raise errors.UserError(f"--seed={seed} is not in run {folder}; choose one of {seeds}.")
    chosen = build_lib.build(config, [built.lanes[index] for index in wanted])
    return Loaded(chosen, chosen.program.place(jax.tree.map(lambda leaf: leaf[np.asarray(wanted)], state)), iteration)


def prepare_folder(config: Config, folder: pathlib.Path) -> None:
    """Makes the run folder, or checks that it belongs to the same config."""
    path = folder / "config.json"
    if path.exists():
        theirs = load_config(folder)
        difference = _first_difference(config_lib.to_dict(theirs), config_lib.to_dict(config))
        if difference:
            raise errors.UserError(
                f"run folder {folder} was made with {difference}; choose another --run_dir or the same settings."
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise errors.UserError(f"run folder {folder} exists and is not a run; choose another --run_dir.")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_text(path, config_lib.to_json(config))


def load_config(folder: pathlib.Path) -> Config:
    """The config of a run folder."""
    path = folder / "config.json"
    try:
        return config_lib.from_saved(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise errors.UserError(f"{folder} is not a run folder: it has no config.json.") from None
    except json.JSONDecodeError as error:
        raise errors.UserError(f"{path} is damaged: {error}.") from None


def _has_begun(folder: pathlib.Path) -> bool:
    """Whether a run has a checkpoint."""
    if not (folder / "checkpoints").is_dir():
        return False
    saved = checkpoint.Checkpoints(folder / "checkpoints", read_only=True)
    try:
        return bool(saved.iterations())
    finally:
        saved.close()


def _first_difference(theirs: dict, ours: dict, path: str = "") -> str:
    for name, value in theirs.items():
        if path + name in _FREE_TO_CHANGE:
            continue
        if isinstance(value, dict):
            inner = _first_difference(value, ours[name], f"{path}{name}.")
            if inner:
                return inner
        elif _plain(value) != _plain(ours[name]):
            return f"{path}{name}={value!r}, not {ours[name]!r}"
    return ""


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _best_so_far(path: pathlib.Path, saved: list[int]) -> float:
    """The window return (mean over lanes) at the newest best checkpoint."""
    if not saved or not path.exists():
        return -np.inf
    returns = [row["window/return"] for row in metrics.read(path) if row["iteration"] == saved[-1] - 1]
    return float(np.mean(returns)) if returns else -np.inf


def _diverged(rows, built, done: int, folder: pathlib.Path, checkpoints: checkpoint.Checkpoints) -> str:
    lane, offset = (int(index[0]) for index in np.nonzero(~(rows["finite"] > 0)))
    checkpoints.wait()
    good = checkpoints.iterations()
    last = f"the last good checkpoint is {folder}/checkpoints/{good[-1]}" if good else "no checkpoint was written yet"
    return f"{built.lanes[lane].name} became non-finite in iteration {done + offset}; {last}."


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """Ctrl-C or a polite kill asks the loop to save and end; a second one ends at once."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        del frame
        if received:
            raise KeyboardInterrupt
        received.append(number)
        print("\nstopping after this chunk; the state will be saved", flush=True)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
