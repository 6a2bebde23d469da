"""Kills server, trainer and browser at 50 random moments: python -m benchmarks.kill_page

Somebody labels clips by keyboard in headless Chromium, while one of the three is killed (signal 9) and started again,
time after time. The trainer is a process that asks for clips and takes answers as a trainer does, without learning.
Every answer that the page has seen accepted must be in the store unchanged, every clip must have one answer, and no
clip whose answer was accepted may be shown again.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
import websockets
from absl import flags

from benchmarks import label_page
from benchmarks.browser import Page, browser
from traces_jax.host import cli
from traces_jax.host.label import store
from traces_jax.host.label.store import Identity, Store

_KILLS = flags.DEFINE_integer("kills", 50, "How many processes are killed.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the random moments.")

_STEPS, _AT_ONCE = 10, 4
# Seconds between two kills.
_SHORTEST, _LONGEST = 0.2, 4.0
_SERVE = """
import pathlib, sys, uvicorn
from traces_jax.host.label import server
app, _ = server.make(pathlib.Path(sys.argv[1]), token=None)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error", ws="none")
"""
_TRAIN = """
import pathlib, sys
from benchmarks import kill_page
kill_page.train(pathlib.Path(sys.argv[1]))
"""


def train(folder: pathlib.Path) -> None:
    """Asks for a few clips at a time, from the beginning, as a trainer that has lost its checkpoint. Prints answers."""
    base, number = Store(folder), 0
    rng = np.random.default_rng(0)
    while True:
        clips = [Identity("seed=0", own, 0, 0) for own in range(number, number + _AT_ONCE)]
        base.ask([(clip, 0.1 * rng.normal(size=(_STEPS, 9)), _STEPS) for clip in clips])
        while (taken := base.take(clips)) is None:
            time.sleep(0.1)
        for clip, answers in zip(clips, taken, strict=True):
            print(json.dumps([clip.iteration, *((own.verdict, own.step) for own in answers)]), flush=True)
        number += _AT_ONCE


class Processes:
    """Server and trainer, which are started again when they are killed."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._port = str(random.randrange(20000, 30000))
        self.address = f"http://127.0.0.1:{self._port}/"
        self.taken: list[Any] = []
        self._running = {name: self._start(name) for name in ("server", "trainer")}

    def _start(self, name: str) -> subprocess.Popen:
        code, more = (_SERVE, [self._port]) if name == "server" else (_TRAIN, [])
        command = [sys.executable, "-c", code, str(self._folder), *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE if name == "trainer" else None)
        if name == "trainer":
            threading.Thread(target=self._listen, args=(process,)).start()
        return process

    def _listen(self, process: subprocess.Popen) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith(b"\n"):  # A line that was cut off was not said.
                self.taken.append(json.loads(line))

    def kill(self, name: str, *, again: bool = True) -> None:
        """Kills one, and starts it again."""
        self._running[name].send_signal(signal.SIGKILL)
        self._running[name].wait()
        if again:
            self._running[name] = self._start(name)


class Annotator:
    """Labels in a browser, and knows which answers were accepted."""

    def __init__(self) -> None:
        self.accepted: list[tuple[str, str, int | None]] = []
        self.again = 0

    def label(self, page: Page) -> None:
        """Labels the clip on the screen, if there is one."""
        if not page.value(label_page.READY):
            time.sleep(0.05)
            return
        showing = str(page.value("page.queue[0].id"))
        self.again += showing in {name for name, _, _ in self.accepted}
        verdict, key = random.choice([("accept", "a"), ("reject", "r"), ("from", "x")])
        step = None
        if verdict == "from":
            step = random.randrange(_STEPS)
            page.value(f"seek({step})")
        page.key(key)
        refused = page.value("page.sending.then(() => document.getElementById('alert').textContent)")
        assert not refused, refused
        self.accepted.append((showing, verdict, step))


def main() -> int:
    """Prints what was lost, doubled, changed or asked again."""
    random.seed(_SEED.value)
    store.UNDO_SECONDS = 0.0
    annotator, kills = Annotator(), dict.fromkeys(("server", "trainer", "browser"), 0)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base = label_page.fill(folder, [])
        processes = Processes(folder)
        victims: list[int] = []

        def murder() -> None:
            while sum(kills.values()) < _KILLS.value:
                time.sleep(random.uniform(_SHORTEST, _LONGEST))
                victim = random.choice(list(kills))
                if victim == "browser":
                    if not victims:
                        continue
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victims.pop(), signal.SIGKILL)
                else:
                    processes.kill(victim)
                kills[victim] += 1

        thread = threading.Thread(target=murder)
        thread.start()
        while thread.is_alive():
            with contextlib.suppress(websockets.ConnectionClosed, OSError), browser() as chromium:
                page = chromium.tab()
                label_page.enter(page, processes.address, "ann")
                victims.append(chromium.process.pid)
                while thread.is_alive():
                    annotator.label(page)
        for own in ("server", "trainer"):
            processes.kill(own, again=False)
        rows = base.rows()
        base.close()
    there = {row["id"]: (row["id"], row["verdict"], row["step"]) for row in rows}
    by_clip = {row["iteration"]: [row["verdict"], row["step"]] for row in rows}
    print(", ".join(f"{count} kills of the {name}" for name, count in kills.items()))
    print(f"{len(rows)} answers of {len(by_clip)} clips, {len(annotator.accepted)} of them seen accepted by the page")
    lost = sum(there.get(one[0]) != one for one in annotator.accepted)
    changed = sum([by_clip.get(clip)] != answers for clip, *answers in processes.taken)
    print(
        f"lost {lost}, doubled {len(rows) - len(by_clip)}, asked again {annotator.again}, taken and changed {changed}"
    )
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
