"""The trainer's side of labels from outside the compiled program: who answers, and an iteration around the answers."""

import abc
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from traces_jax import sources
from traces_jax.core.halves import Opened
from traces_jax.core.learner import LearnerState
from traces_jax.feedback import labelers
from traces_jax.feedback.trajectories import Shown
from traces_jax.host import errors
from traces_jax.host.label import exchange, votes
from traces_jax.host.label.store import Identity, Said, Store
from traces_jax.host.run.build import Built
from traces_jax.tasks import PhysicsTask

WAIT, EXIT = "wait", "exit"
# Seconds between two looks for answers.
_POLL = 0.25


class LabelsNeeded(Exception):
    """A run cannot go on without labels."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(f"labels are needed; {_how(folder)}; then the same command goes on.")


def _how(folder: pathlib.Path) -> str:
    return f"python -m traces_jax.label --run {folder} asks for them"


class Waiting:
    """Whether to wait for answers. Before the first wait it saves the state and says what is missing."""

    def __init__(
        self,
        folder: pathlib.Path,
        mode: str,
        stopped: Sequence[int],
        save: Callable[[], None],
        say: Callable[[str], None],
    ):
        """mode: "wait" or "exit"; stopped: filled when the process is asked to stop."""
        self._folder, self._mode, self._stopped, self._save, self._say = folder, mode, stopped, save, say
        self._waited = False

    def __call__(self) -> bool:
        if not self._waited:
            self._save()
            if self._mode == WAIT:
                self._say(f"waiting for labels; {_how(self._folder)}")
        self._waited = True
        return self._mode == WAIT and not self._stopped


@dataclasses.dataclass(frozen=True)
class Clip:
    """A trajectory to be labelled. shown: what a labeler sees of it, without a leading axis."""

    identity: Identity
    shown: Shown


class Labeler(abc.ABC):
    """Somebody or something outside the iteration's program that labels."""

    @abc.abstractmethod
    def answer(
        self, built: Built, opened: Opened, sound: np.ndarray, index: int, wait: Callable[[], bool]
    ) -> sources.Answers | None:
        """Labels [S, K, P] of a query; None if they are not there and `wait`, called again and again, says no.

        sound: [S] which lanes are finite; the others need no labels.
        """

    def close(self, *, complete: bool) -> None:
        """Ends its work. complete: whether the run is."""
        del complete


class Compiled(Labeler):
    """A function of JAX. It runs on the devices."""

    def answer(self, built, opened, sound, index, wait):
        del sound, wait
        return built.program.answer(opened, index)


class OneByOne(Labeler):
    """Labels clips that it is given on the host."""

    @abc.abstractmethod
    def label(self, clips: Sequence[Clip], wait: Callable[[], bool]) -> list[list[Said]] | None:
        """The answers to each clip, or None."""

    def answer(self, built, opened, sound, index, wait):
        query = opened.query
        rows, origin, watched = jax.device_get((query.rows, query.origin, query.watched))
        labels, mask = np.zeros(rows.labels.shape, np.float32), np.zeros(rows.mask.shape, bool)
        places = [tuple(place) for place in np.argwhere((rows.length > 0) & sound[:, None])]
        clips = []
        for lane, row in places:
            positions = None if watched is None else watched[lane, row]
            shown = labelers.shown(
                rows.inputs[lane, row], rows.length[lane, row], positions, built.task.observation_size
            )
            numbers = (int(own[lane, row]) for own in (origin.iteration, origin.environment, origin.first))
            clips.append(Clip(Identity(built.lanes[lane].name, *numbers), shown))
        answers = self.label(clips, wait)
        if answers is None:
            return None
        source = sources.learned(built.config, built.task)
        for place, clip, found in zip(places, clips, answers, strict=True):
            labels[place], mask[place] = votes.labels(source, built.config, found, int(clip.shown.length))
        return sources.Answers(labels=jnp.asarray(labels), mask=jnp.asarray(mask))


class People(OneByOne):
    """Those who use the page. Clips and answers are in the run folder's labels.db."""

    def __init__(self, built: Built, folder: pathlib.Path):
        task = built.task
        if not isinstance(task, PhysicsTask):
            raise errors.UserError(
                f"labels.by=people is not right: {task.name} has no simulator, so that there is nothing to see; "
                f"module:function would be right."
            )
        self._store = Store(folder)
        budget = built.config.query.budget
        examples = task.examples()
        self._store.describe(
            examples=json.dumps([{"words": one.words, "violation": one.violation} for one in examples]),
            **{f"example-{number}": one.positions.tobytes() for number, one in enumerate(examples)},
            task=task.name,
            question=task.question,
            guide=task.guide,
            seconds=task.physics.environment_seconds,
            nq=task.physics.mj_model.nq,
            model=packed(task.physics.mj_model),
            expected=budget * len(built.lanes),
        )

    def label(self, clips, wait):
        positions = [np.asarray(clip.shown.positions) for clip in clips]
        self._store.ask(
            [(clip.identity, own, int(clip.shown.length)) for clip, own in zip(clips, positions, strict=True)]
        )
        identities = [clip.identity for clip in clips]
        while (found := self._store.take(identities)) is None:
            self._store.describe(state="waiting")
            if not wait():
                return None
            time.sleep(_POLL)
        self._store.describe(state="training")
        return found

    def close(self, *, complete):
        self._store.describe(state="complete" if complete else "stopped")
        self._store.close()


class File(OneByOne):
    """Labels that were made before."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._answers = exchange.clips(exchange.read(path))

    def label(self, clips, wait):
        del wait
        missing = next((clip.identity for clip in clips if clip.identity not in self._answers), None)
        if missing is not None:
            raise errors.UserError(
                f"labels.by={self._path} is not right: it has no label for {missing}; a file exported from a run with "
                f"the same settings, or people, would be right."
            )
        return [self._answers[clip.identity] for clip in clips]


class Function(OneByOne):
    """A function of NumPy."""

    def __init__(self, by: str):
        self._by = by

    def label(self, clips, wait):
        del wait
        if not clips:
            return []
        shown = jax.tree.map(lambda *leaves: np.stack(leaves), *(clip.shown for clip in clips))
        return votes.from_steps(np.asarray(labelers.judged(self._by, shown)))


def make(built: Built, folder: pathlib.Path) -> Labeler | None:
    """The labeler of a run; None if it is part of the program."""
    config = built.config
    if built.program.learner.source.answers_inside(config):
        return None
    if jax.process_count() > 1:
        raise errors.UserError(
            f"labels.by={config.labels.by} is not right in {jax.process_count()} processes: labels from outside the "
            f"program are for one; one process, or oracle, would be right."
        )
    kind = labelers.kind(config.labels.by)
    if kind == labelers.PEOPLE:
        return People(built, folder)
    if kind == labelers.FILE:
        return File(pathlib.Path(config.labels.by))
    picks = sources.learned(config, built.task).schedule(config).picks
    return Compiled() if labelers.compiles(config.labels.by, built.task, picks) else Function(config.labels.by)


def iteration(
    built: Built, labeler: Labeler, state: LearnerState, index: int, wait: Callable[[], bool]
) -> tuple[LearnerState, dict[str, jax.Array]] | None:
    """One iteration of all lanes, with answers in the middle; None if they are not there and `wait` says no.

    state is then unchanged.
    """
    program = built.program
    after, opened = program.ask(state, index)
    if program.asks(index):
        sound = np.asarray(jax.device_get(state.diverged)) < 0
        answers = labeler.answer(built, opened, sound, index, wait)
        if answers is None:
            return None
    else:
        rows = opened.query.rows
        answers = sources.Answers(labels=jnp.zeros_like(rows.labels), mask=jnp.zeros_like(rows.mask))
    return program.absorb(after, opened, answers, index)


def packed(model: mujoco.MjModel) -> bytes:
    """A model as MuJoCo's binary format, so that the server needs neither the task nor its files."""
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()
