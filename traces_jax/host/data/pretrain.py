"""Fits an estimator to recorded trajectories, tests it on others, and saves it as a start for runs."""

import dataclasses
import itertools
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.table

from traces_jax import sources
from traces_jax.config import Config
from traces_jax.core.keys import Stream, stream
from traces_jax.core.optimize import Trained
from traces_jax.estimator import credit as credit_lib
from traces_jax.estimator import pretrain as pretrain_lib
from traces_jax.feedback import labelers, labels
from traces_jax.feedback.trajectories import Trajectories
from traces_jax.host import errors, runtime
from traces_jax.host.data import offline, prior
from traces_jax.host.data.offline import Recording
from traces_jax.host.report import credits
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import diagnostics, progress
from traces_jax.sources import Prior
from traces_jax.tasks import Task

# A block is briefly in memory twice: as read, and on the devices.
_COPIES = 2


@dataclasses.dataclass(frozen=True)
class Split:
    """A random split of the episodes.

    Attributes:
      train: training set.
      choose: validation set, which decides when to stop and which weights are kept.
      test: held-out test set.
    """

    train: np.ndarray
    choose: np.ndarray
    test: np.ndarray


@dataclasses.dataclass(frozen=True)
class Fit:
    """The estimator with the best accuracy on prefixes of the validation set, and its number of steps."""

    fitted: Trained
    accuracy: float
    steps: int


def pretrain(config: Config, data: pathlib.Path, out: pathlib.Path | None, *, overwrite: bool = False) -> None:
    """Reads the file, fits an estimator, prints its test metrics, and writes the folder `out` if given.

    Fitting starts from estimator.init, unless that is `out` itself. overwrite: whether `out` may already contain an
    estimator.
    """
    if out is not None:
        prior.check_out(out, overwrite=overwrite)
    began = time.monotonic()
    task = build_lib.make_task(config, build_lib.choose_physics(config.physics, jax.default_backend()))
    source = sources.learned(config, task)
    key = jax.random.key(config.seed)
    start = _start(config, task, out, source, key)
    with offline.opened(data, source, config, print) as recording:
        split = _split(config, recording)
        recording = _mislead(config, recording, split, key)
        statistics = recording.statistics if start.statistics is None else start.statistics
        program = pretrain_lib.Program(
            settings=config.pretrain,
            max_grad_norm=config.refit.max_grad_norm,
            model=source.model(config, statistics),
            devices=jax.devices(),
        )
        print(f"{data}: {recording.count} episodes, {recording.length.sum():,} steps, {len(split.test)} held out")
        fit = _fit(config, program, recording, split, start.fitted, key)
        seconds = time.monotonic() - began
        held_out = _held_out(program, recording, split.test, fit.fitted.params)
        rows = recording.rows(split.train[: config.refit.store])
        found = {
            "data": str(data),
            "trajectories": {
                "fitted": len(split.train),
                "chosen_by": len(split.choose),
                "held_out": len(split.test),
                "stored": rows.count,
            },
            "steps": fit.steps,
            "seconds": round(seconds, 1),
            # JSON has no NaN, which is the precision of an estimator that never accepts.
            "held_out": jax.tree.map(lambda value: value if math.isfinite(value) else None, held_out),
            **runtime.describe(),
        }
        if out is not None:
            prior.save(out, config, Prior(fit.fitted, statistics, rows), found)
    rich.console.Console().print(_table(config, held_out, len(split.test), fit, seconds))


def _start(config: Config, task: Task, out: pathlib.Path | None, source: sources.Labelled, key: jax.Array) -> Prior:
    """The initial estimator. If estimator.init is `out` itself, as for the later training run, it is a new one."""
    if out is not None and pathlib.Path(config.estimator.init).resolve() == out.resolve():
        config = dataclasses.replace(config, estimator=dataclasses.replace(config.estimator, init="none"))
    known = prior.load(config, task, print)
    if known:
        return known
    fresh = source.fresh_for_data(config, stream(key, 0, Stream.ESTIMATOR))
    return Prior(fresh, statistics=None, rows=None)


def _split(config: Config, recording: Recording) -> Split:
    """Splits off the test set, then the same share of the rest for validation. Checks that enough data is left."""
    if recording.count < 3:
        raise errors.UserError(
            f"{recording.path} has too few episodes, {recording.count}; at least 3 are needed, "
            f"one each for training, validation and test."
        )

    def cut(count: int) -> int:
        return max(1, round(config.pretrain.test_share * count))

    order = np.random.default_rng(config.seed).permutation(recording.count)
    held_out = min(cut(recording.count), recording.count - 2)
    chosen_by = min(cut(recording.count - held_out), recording.count - held_out - 1)
    test, choose, train = np.split(order, [held_out, held_out + chosen_by])
    split = Split(train, choose, test)
    said = recording.labels[split.train][recording.mask[split.train]]
    if said.min() == said.max():
        kind = "acceptable" if said.min() else "violating"
        raise errors.UserError(
            f"{recording.path}: all {said.size} labels to learn from say {kind} with "
            f"constraint.cost_limit={config.constraint.cost_limit}; there must be some of both kinds."
        )
    return split


def _mislead(config: Config, recording: Recording, split: Split, key: jax.Array) -> Recording:
    """Flips labels according to labels.noise. Those of the test set stay correct."""
    if labelers.kind(config.labels.by) != labelers.ORACLE:
        return recording
    wrong = np.array(labels.flip(jnp.asarray(recording.labels), stream(key, 0, Stream.LABEL), config.labels.noise))
    wrong[split.test] = recording.labels[split.test]
    return dataclasses.replace(recording, labels=wrong)


def _fit(
    config: Config,
    program: pretrain_lib.Program,
    recording: Recording,
    split: Split,
    fitted: Trained,
    key: jax.Array,
) -> Fit:
    settings = config.pretrain

    def right(fitted: Trained) -> float:
        log_probability, _ = _look(program, recording, split.choose, fitted.params)
        mask = recording.mask[split.choose]
        return _judged(log_probability[mask], recording.labels[split.choose][mask])["accuracy"]

    state = pretrain_lib.begin(fitted)
    best = Fit(fitted, right(fitted), 0)
    with progress.Bar("step", settings.steps) as view:
        view.begin(0)
        blocks = _blocks(config, program, recording, split)
        for done in range(settings.every, settings.steps + 1, settings.every):
            if best.accuracy >= settings.target_accuracy:
                break
            state, loss = program.advance(state, next(blocks), key, done - settings.every)
            if not np.isfinite(loss):
                raise errors.UserError(
                    f"the loss became {loss} within {done} steps; choose a smaller pretrain.lr than {settings.lr}."
                )
            accuracy = right(state.result)
            if accuracy > best.accuracy:
                best = Fit(state.result, accuracy, done)
            view.show(done, f"loss {loss:.3f}  accuracy {100 * accuracy:.1f} %")
    return best


def _blocks(
    config: Config, program: pretrain_lib.Program, recording: Recording, split: Split
) -> Iterator[Trajectories]:
    """Endless blocks of training trajectories on the devices. If one block holds all of them, it is read once."""
    most = max(1, int(config.pretrain.memory * 1e6) // (_COPIES * recording.row_bytes))
    count = -(-len(split.train) // most)
    size = -(-len(split.train) // count)
    if count == 1:
        yield from itertools.repeat(program.place(recording.rows(split.train), size))
    random = np.random.default_rng(config.seed)
    while True:
        for chosen in np.array_split(random.permutation(split.train), count):
            yield program.place(recording.rows(chosen), size)


def _look(
    program: pretrain_lib.Program, recording: Recording, chosen: np.ndarray, estimator: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities [N, P] of the prefixes of the chosen [N] trajectories, and credits [N, T] of their steps."""
    batch = program.settings.batch
    seen = [
        program.look(estimator, recording.rows(chosen[first : first + batch])) for first in range(0, len(chosen), batch)
    ]
    log_probability, credit = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    return log_probability, credit


def _held_out(
    program: pretrain_lib.Program, recording: Recording, chosen: np.ndarray, estimator: Any
) -> dict[str, dict[str, float]]:
    """The estimator's metrics on held-out trajectories [N]: on all prefixes, and on full trajectories."""
    log_probability, credit = _look(program, recording, chosen, estimator)
    said, mask, cost = recording.labels[chosen], recording.mask[chosen], recording.costs(chosen)
    whole, inside = log_probability[:, -1], np.arange(cost.shape[1]) < recording.length[chosen, None]
    full = diagnostics.summarize(said[:, -1], np.exp(whole), cost, np.where(inside, credit, np.nan))
    known = mask[:, -1]
    return {
        "prefixes": _judged(log_probability[mask], said[mask]),
        "full trajectories": _judged(whole[known], said[known, -1]) | {"credit_where_none": full["credit_where_none"]},
    }


def _judged(log_probability: np.ndarray, said: np.ndarray) -> dict[str, float]:
    """Metrics of predictions against labels; log_probability, said: [N]. See `diagnostics.summarize` for the names."""
    scores = credit_lib.scores(jnp.asarray(log_probability), jnp.asarray(said), jnp.ones(said.shape))
    probability = np.exp(log_probability)
    return {
        "accuracy": float(scores.accuracy),
        "precision": float(scores.precision),
        "recall": float(scores.recall),
        "accepted": float(said.mean()),
        "probability": float(probability.mean()),
        "calibration_error": credits.reliability(probability, said).error,
    }


def _table(
    config: Config, found: dict[str, dict[str, float]], count: int, fit: Fit, seconds: float
) -> rich.table.Table:
    title = f"{config.task}: {count} held-out trajectories after {fit.steps} steps, {progress.clock(seconds)}"
    view = rich.table.Table("", title=title)
    for column in found:
        view.add_column(column, justify="right", no_wrap=True)
    for name in found["full trajectories"]:
        form = ".2f" if name in ("calibration_error", "credit_where_none") else ".1%"
        cells = [format(own[name], form) if name in own else "" for own in found.values()]
        view.add_row(name.replace("_", " "), *cells)
    return view
