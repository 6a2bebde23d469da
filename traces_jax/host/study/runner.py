"""The loop of a study: starts what can be started, notes what has ended, until nothing is left to do."""

import collections
import contextlib
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping

from traces_jax.host import cli
from traces_jax.host.study import outcomes
from traces_jax.host.study.engines import base
from traces_jax.host.study.engines.base import Engine, Job
from traces_jax.host.study.plan import Step

# Between two looks at what goes on, and between two pictures of it, seconds.
_PAUSE, _PICTURE = 0.05, 1.0


class Runner:
    """One call of a study. root: its folder. jobs: most at a time. retries: of a step that fails."""

    def __init__(
        self,
        root: pathlib.Path,
        steps: Mapping[str, Step],
        engine: Engine,
        *,
        jobs: int,
        retries: int,
        cpus: int,
        gpus: int,
        path: str,
    ):
        self._root, self._steps, self._engine = root, steps, engine
        self._jobs, self._retries, self._cpus, self._gpus, self._path = jobs, retries, cpus, gpus, path
        self._done = {name for name, step in steps.items() if outcomes.is_done(root, step)}
        self._running: set[str] = set()
        self._failures: collections.Counter[str] = collections.Counter()

    def run(self, show: Callable[[], None]) -> bool:
        """Until all that can be done is done, or a signal comes. Returns whether it was not stopped."""
        shown = 0.0
        with _signals() as received:
            stops = 0
            while True:
                for name, code in self._engine.ended().items():
                    self._note(name, code)
                if len(received) > stops:
                    stops = len(received)
                    self._engine.stop()
                if not stops:
                    self._start()
                if not self._running:
                    return not stops
                if time.monotonic() - shown >= _PICTURE:
                    show()
                    shown = time.monotonic()
                time.sleep(_PAUSE)

    def _note(self, name: str, code: int) -> None:
        """An attempt has ended. One that was stopped, by whomever, is no failure: it goes on."""
        self._running.discard(name)
        step = self._steps[name]
        if outcomes.is_done(self._root, step):
            self._done.add(name)
        elif code != cli.STOPPED:
            self._failures[name] += 1
            if outcomes.code(self._root / step.folder) is None:
                # Killed: it could not say so itself.
                outcomes.write(self._root / step.folder, code or 1)

    def _start(self) -> None:
        for name, step in self._steps.items():
            if len(self._running) >= self._jobs:
                return
            if name in self._done | self._running or self._failures[name] > self._retries:
                continue
            if self._done.issuperset(step.needs):
                base.prepare(self._root, step)
                inputs = tuple(self._steps[other].output for other in step.needs)
                self._engine.start(Job(self._root, step, inputs, self._cpus, self._gpus, self._path))
                self._running.add(name)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Ctrl-C and a polite kill are noted; the loop passes them on."""
    received: list[int] = []
    note = lambda number, frame: received.append(number)  # noqa: E731
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
