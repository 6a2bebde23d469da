"""Kills server, trainer and browser at 50 random moments: python -m benchmarks.kill_page

The scripted judge labels the fall of a cheetah by keyboard in headless Chromium, while the training, the page's server
or the browser is killed (signal 9) and started again with the same command, time after time. Every answer that the page
has seen accepted must be in the store unchanged, every clip must have one answer, no clip whose answer was accepted may
be shown again, and the run must end as one that the judge labels inside the program, bit for bit.
"""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import websockets
from absl import flags

from benchmarks import label_page, remains
from benchmarks.browser import Page, browser
from benchmarks.commands import ROOT
from traces_jax.host import cli
from traces_jax.host.label.store import NAME, Said, Store

_KILLS = flags.DEFINE_integer("kills", 50, "How many processes are killed.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the random moments.")

# Iterations of a run, each with one label. There are as many runs as it takes.
_ITERATIONS = 25
_TRAIN = (
    *("traces_jax.train", "--config=experiments/cheetah_fall.py", f"--config.steps={1500 * _ITERATIONS}"),
    "--config.run.evaluation_episodes=0",
)
_JUDGE = "--config.labels.by=traces_jax.tasks.fall:judge"
_SERVER, _TRAINER, _BROWSER = "server", "trainer", "browser"
# Seconds between two kills. Most programs are then past their start.
_SHORTEST, _LONGEST = 0.2, 15.0


def _start(*line: str) -> subprocess.Popen:
    """A command of this package. What it says goes nowhere."""
    return subprocess.Popen(
        [sys.executable, "-m", *line], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


class Processes:
    """Training and server of one run. Whichever ends before its work is done is started again."""

    def __init__(self, folder: pathlib.Path):
        port = random.randrange(20000, 30000)
        self.address = f"http://127.0.0.1:{port}/"
        self._lines = {
            _TRAINER: (*_TRAIN, "--labels=wait", f"--run_dir={folder}"),
            _SERVER: ("traces_jax.label", f"--run={folder}", f"--port={port}", "--repeats=0"),
        }
        self._asked = folder / NAME
        self._lock = threading.Lock()
        self._running = {_TRAINER: _start(*self._lines[_TRAINER])}

    def complete(self) -> bool:
        """Whether the training has come to its end. Starts what is not there, as soon as there is something to ask."""
        with self._lock:
            if self._running[_TRAINER].poll() == cli.OK:
                return True
            for name, line in self._lines.items():
                ended = name not in self._running or self._running[name].poll() is not None
                if ended and (name == _TRAINER or self._asked.exists()):
                    self._running[name] = _start(*line)
            return False

    def kill(self, name: str, *, again: bool = True) -> bool:
        """Kills one, and starts it again. Returns whether it was running."""
        with self._lock:
            process = self._running.get(name)
            if process is None or process.poll() is not None:
                return False
            process.kill()
            process.wait()
            if again:
                self._running[name] = _start(*self._lines[name])
            return True

    def end(self) -> None:
        """Ends both."""
        for name in self._lines:
            self.kill(name, again=False)


class Annotator:
    """The judge at the page, who knows which answers were accepted."""

    def __init__(self) -> None:
        self.accepted: dict[str, Said] = {}
        self.again = 0

    def label(self, page: Page, store: Store) -> None:
        """Labels the clip on the screen, if there is one."""
        found = label_page.judge(page, store)
        if found is None:
            time.sleep(0.05)
            return
        showing, said = found
        refused = page.value("document.getElementById('alert').textContent")
        assert not refused, refused
        self.again += showing in self.accepted
        self.accepted[showing] = said


def _label(folder: pathlib.Path, kills: dict[str, int], annotator: Annotator) -> None:
    """Labels one run to its end, and kills meanwhile as long as there have been too few kills."""
    processes = Processes(folder)
    browsers: list[int] = []
    over = threading.Event()

    def murder() -> None:
        while sum(kills.values()) < _KILLS.value:
            if over.wait(random.uniform(_SHORTEST, _LONGEST)):
                return
            victim = random.choice(list(kills))
            if victim != _BROWSER:
                kills[victim] += processes.kill(victim)
            elif browsers:
                os.kill(browsers.pop(), signal.SIGKILL)
                kills[victim] += 1

    thread = threading.Thread(target=murder)
    thread.start()
    try:
        while not processes.complete():
            with contextlib.suppress(websockets.ConnectionClosed, OSError), browser() as chromium:
                browsers.append(chromium.process.pid)
                try:
                    _sit(chromium.tab(), processes, annotator, folder)
                finally:
                    browsers.clear()
    finally:
        over.set()
        thread.join()
        processes.end()


def _sit(page: Page, processes: Processes, annotator: Annotator, folder: pathlib.Path) -> None:
    """Labels in one browser, until it is killed or the run is complete."""
    while not processes.complete():
        # Nobody may be there to serve the page itself.
        with contextlib.suppress(AssertionError):
            label_page.enter(page, processes.address, "judge", seconds=10.0)
            break
    with contextlib.closing(Store(folder)) as store:
        while not processes.complete():
            annotator.label(page, store)


def _end(folder: pathlib.Path) -> dict:
    """What a run has learned: its rows, its last state, and its best one."""
    wanted = ("metrics.jsonl", f"checkpoints/{_ITERATIONS} ", "best/")
    return {name: content for name, content in remains.of(folder).items() if name.startswith(wanted)}


def main() -> int:
    """Prints what was lost, doubled, asked again or changed."""
    random.seed(_SEED.value)
    kills = dict.fromkeys((_SERVER, _TRAINER, _BROWSER), 0)
    runs = answers = lost = doubled = again = different = 0
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        assert _start(*_TRAIN, _JUDGE, f"--run_dir={root / 'inside'}").wait() == cli.OK
        expected = _end(root / "inside")
        while sum(kills.values()) < _KILLS.value:
            folder, annotator = root / f"page{runs}", Annotator()
            folder.mkdir()
            _label(folder, kills, annotator)
            with contextlib.closing(Store(folder)) as store:
                rows = store.rows()
            runs += 1
            there = {row["id"]: Said(row["verdict"], row["step"]) for row in rows}
            answers += len(rows)
            lost += sum(there.get(showing) != said for showing, said in annotator.accepted.items())
            doubled += len(rows) - len({row["iteration"] for row in rows})
            again += annotator.again
            different += bool(remains.differences(expected, _end(folder)))
            print(f"run {runs}: {len(rows)} answers, {sum(kills.values())} kills so far", flush=True)
    print(", ".join(f"{count} kills of the {name}" for name, count in kills.items()))
    print(f"{answers} answers: lost {lost}, doubled {doubled}, asked again {again}")
    print(f"{runs} runs, {different} of them unlike the one that was labelled inside the program")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
