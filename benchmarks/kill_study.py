"""Kill parts of a study at random moments: python -m benchmarks.kill_study --seed 0

The study `smoke` is disturbed in three ways: its runner is killed (signal 9) and started again with the same command; a
process that runs one of its steps is killed; so is a worker of Ray with such a process below it. Tables and rows at the
end must be those of an undisturbed study, bit for bit but for clocks.
"""

import dataclasses
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from absl import flags

from benchmarks import commands, remains
from traces_jax.host import cli

VICTIMS = RUNNER, WORKER, RAY_WORKER = "runner", "worker", "Ray worker"
_TABLES = ("results.csv", "improvement.csv", "results.md")
_CHILD = "traces_jax.host.study.child"
# Seconds from the start of a runner, or from the last kill, to the next.
_LATEST = 25.0


@dataclasses.dataclass
class Disturbed:
    """A study and what has happened to it."""

    victim: str
    folder: pathlib.Path
    kills: int = 0

    def start(self) -> subprocess.Popen:
        """The same command every time."""
        engine = "ray" if self.victim == RAY_WORKER else "local"
        line = [sys.executable, "-m", "traces_jax.study", "experiments/studies/smoke.py", f"--out={self.folder}"]
        with (self.folder.parent / f"{self.folder.name}.txt").open("ab") as log:
            return subprocess.Popen(
                [*line, f"--engine={engine}", "--retries=100"],
                cwd=commands.ROOT,
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                stdout=log,
                stderr=log,
            )

    def finish(self, wanted: int, chance: random.Random) -> int:
        """Runs the study with at most so many kills. Returns the exit code of its last call."""
        child = self.start()
        while True:
            end = time.monotonic() + (chance.uniform(0, _LATEST) if self.kills < wanted else 3600.0)
            while child.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            if child.poll() is not None:
                return child.returncode
            victims = [child.pid] if self.victim == RUNNER else _processes(self.folder, self.victim)
            if not victims:
                continue
            os.kill(chance.choice(victims), signal.SIGKILL)
            self.kills += 1
            if self.victim == RUNNER:
                child.wait()
                child = self.start()


def _processes(folder: pathlib.Path, victim: str) -> list[int]:
    """Processes that run the steps of a study, or those that started them."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if _CHILD in line and (path / "cwd").resolve() == folder.resolve():
                status = (path / "status").read_text()
                parent = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("PPid:"))
                found.append(parent if victim == RAY_WORKER else int(path.name))
        except OSError:
            # It has ended.
            continue
    return [process for process in found if process > 1]


def table(folder: pathlib.Path) -> dict:
    """What a study has found: its tables, and every row of its runs."""
    found: dict = {name: (folder / "report" / name).read_bytes() for name in _TABLES}
    return found | {path.parent.name: remains.rows(path) for path in sorted(folder.glob("runs/*/metrics.jsonl"))}


_SEED = flags.DEFINE_integer("seed", 0, "Another has other moments.", allow_override=True)
_KILLS = flags.DEFINE_integer("kills", 20, "Of each kind.")
_VICTIMS = flags.DEFINE_multi_enum("victims", VICTIMS, VICTIMS, "What is killed.")


def main() -> int:
    """The command line."""
    chance = random.Random(_SEED.value)
    root = pathlib.Path(tempfile.mkdtemp(prefix="traces_jax_kill_study_"))
    quiet = Disturbed(RUNNER, root / "undisturbed")
    if quiet.finish(0, chance) != cli.OK:
        raise RuntimeError(f"the undisturbed study failed; see {root}")
    expected, wrong = table(quiet.folder), []
    for victim in _VICTIMS.value:
        kills, studies = 0, 0
        while kills < _KILLS.value:
            own = Disturbed(victim, root / f"{victim.replace(' ', '_')}_{studies}")
            code = own.finish(_KILLS.value - kills, chance)
            if code and not own.kills:
                raise RuntimeError(f"a study failed that nobody had disturbed; see {root}")
            kills, studies = kills + own.kills, studies + 1
            different = [] if code else remains.differences(expected, table(own.folder))
            if code or different:
                wrong.append(f"{own.folder}, {own.kills} kills: exit code {code}, {', '.join(different)}")
            print(f"{victim}: {kills} kills in {studies} studies, {len(wrong)} wrong", flush=True)
    for sentence in wrong:
        print(sentence)
    if not wrong:
        # Else they are there to look at.
        shutil.rmtree(root)
    return 1 if wrong else cli.OK


if __name__ == "__main__":
    cli.run(main)
