"""What every engine offers, and the process that every engine starts for a step."""

import dataclasses
import os
import pathlib
import pprint
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Protocol

from traces_jax.host import cli, files
from traces_jax.host.study import outcomes
from traces_jax.host.study.plan import Step

# Between two looks whether a child has ended, seconds.
_PAUSE = 0.5
_FILE = '''"""Made by traces_jax.study: what the experiment file said when the study was planned."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(**{tree})
'''


@dataclasses.dataclass(frozen=True)
class Job:
    """A step to be run.

    root: the study's folder. inputs: what other steps have made for it, below root. cpus, gpus: what it may use.
    path: where own tasks are found.
    """

    root: pathlib.Path
    step: Step
    inputs: tuple[str, ...]
    cpus: int
    gpus: int
    path: str


class Engine(Protocol):
    """Runs jobs somewhere. `ended` tells of each job once."""

    def start(self, job: Job) -> None:
        """Takes a job. It may begin later."""

    def ended(self) -> dict[str, int]:
        """Names of steps that have ended since the last call, with their exit codes."""

    def stop(self) -> None:
        """Asks all jobs to save and to end, and does not wait. At the second call they end at once."""

    def close(self) -> None:
        """Gives back what the engine holds."""


def prepare(root: pathlib.Path, step: Step) -> None:
    """Makes the folder of a step, with its experiment file."""
    folder = root / step.folder
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (root / step.output).parent.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / "experiment.py", _FILE.format(tree=pprint.pformat(_tree(step.file))))


def start(job: Job) -> subprocess.Popen:
    """The process of a step. Its output goes to the step's log.

    In a session of its own: Ctrl-C reaches it from us alone, and once. A second one would end it before it has saved.
    """
    folder = job.root / job.step.folder
    with (folder / outcomes.LOG).open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "traces_jax.host.study.child", str(os.getpid()), str(job.cpus)),
                *(job.step.folder, f"traces_jax.{job.step.module}"),
                *(f"--config={job.step.folder}/experiment.py", *job.step.arguments),
            ],
            cwd=job.root,
            env={**os.environ, "PYTHONPATH": job.path},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def finish(job: Job) -> int:
    """Runs a job in a worker of a cluster to its end. Ctrl-C is passed on, and what was done is saved."""
    return wait(start(job))


def wait(child: subprocess.Popen) -> int:
    """Until a child has ended. Returns its exit code.

    Looks again and again: Ray's Ctrl-C is noticed by Python, not by the system, which would go on waiting.
    """
    while True:
        try:
            return child.wait(timeout=_PAUSE)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            return interrupt(child)


def interrupt(child: subprocess.Popen) -> int:
    """Asks a child to save, and waits until it has ended. Returns its exit code."""
    child.send_signal(signal.SIGINT)
    child.wait()
    return cli.STOPPED


def _tree(flat: Mapping[str, object]) -> dict[str, object]:
    """Dotted paths as groups."""
    tree: dict = {}
    for path, value in flat.items():
        group, _, name = path.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[name] = value
    return tree
