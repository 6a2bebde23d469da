"""Kills those who write labels at 50 random moments: python -m benchmarks.kill_label

One process labels clips and says which answers were accepted, another asks for clips and takes answers, as server and
trainer do. Both are killed again and again. At the end every clip must have one answer, no accepted answer may be
missing or changed, and nothing taken may differ from what was answered.
"""

import json
import os
import pathlib
import random
import signal
import tempfile
import time
from collections.abc import Callable

import numpy as np

from traces_jax.host.label import store
from traces_jax.host.label.store import Identity, Said, Store

KILLS, CLIPS, STEPS = 50, 400, 10


def label(folder: pathlib.Path, say: Callable[[object], None]) -> None:
    """Labels whatever is there."""
    base = Store(folder)
    while True:
        for item in base.next("ann", 4):
            said = random.choice([Said("accept"), Said("reject"), Said("from", random.randrange(STEPS))])
            base.answer(item.id, "ann", said, 0)
            say([item.id, said.verdict, said.step])
        time.sleep(0.005)  # Others must have their turn to write.


def train(folder: pathlib.Path, say: Callable[[object], None]) -> None:
    """Asks for four clips at a time from the beginning, as a trainer that has lost its checkpoint."""
    base = Store(folder)
    for first in range(0, CLIPS, 4):
        clips = [Identity("seed=0", number, 0, 0) for number in range(first, first + 4)]
        base.ask([(clip, np.zeros((STEPS, 2), np.float32), STEPS) for clip in clips])
        while (taken := base.take(clips)) is None:
            time.sleep(0.001)
        for clip, answers in zip(clips, taken, strict=True):
            say([clip.iteration, *((own.verdict, own.step) for own in answers)])
    say("all")
    time.sleep(60)


def start(work: Callable, folder: pathlib.Path) -> tuple[int, int]:
    """Forks a process. Returns its id and where it speaks."""
    out, speak = os.pipe()
    child = os.fork()
    if child:
        os.close(speak)
        return child, out
    random.seed()
    work(folder, lambda told: os.write(speak, (json.dumps(told) + "\n").encode()))
    os._exit(0)


def kill(child: int, out: int) -> list:
    """Kills a process. Returns what it has said completely."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = b""
    while part := os.read(out, 1 << 16):
        said += part
    os.close(out)
    return [json.loads(line) for line in said.split(b"\n")[:-1]]


def main() -> None:
    """Prints what was lost, doubled or changed."""
    store.UNDO_SECONDS = 0.0
    accepted: list = []
    taken: dict[int, list] = {}
    changed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base = Store(folder)
        base.describe(nq=2, repeats=0.0)
        for number in range(KILLS + 1):
            last = number == KILLS
            annotator, trainer = start(label, folder), start(train, folder)
            time.sleep(random.uniform(0.0, 0.2))
            while last and base.counts("ann")["answered"] < CLIPS:
                time.sleep(0.01)
            order = random.random() < 0.5
            first, second = (kill(*child) for child in ((annotator, trainer) if order else (trainer, annotator)))
            told, seen = (first, second) if order else (second, first)
            accepted += told
            for clip, *answers in (one for one in seen if one != "all"):
                changed += taken.setdefault(clip, answers) != answers
        rows = base.rows()
        base.close()
    there = {row["id"]: [row["id"], row["verdict"], row["step"]] for row in rows}
    lost = sum(there.get(said[0]) != said for said in accepted)
    doubled = len(rows) - len({row["iteration"] for row in rows})
    print(f"{2 * KILLS} kills, {len(rows)} answers of {CLIPS} clips, {len(accepted)} of them said to be accepted")
    print(f"lost {lost}, doubled {doubled}, taken and changed {changed}")


if __name__ == "__main__":
    main()
