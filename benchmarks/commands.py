"""Small commands for the drivers that disturb them: few steps, so that a call is mostly its start."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import time

from benchmarks import remains

ROOT = pathlib.Path(__file__).parent.parent
_WATCHED = ("run.tensorboard=true", "run.chunk=5", "run.checkpoint_every=10", "run.evaluation_episodes=20")
_PROBE = (
    "task=ProbeBudget", "environment.count=4", "environment.steps=20", "ppo.minibatch=20", "ppo.passes=2",
    "constraint.cost_limit=3", "labels.interval=2", "query.batch=4", "query.fraction=0.25", "refit.store=16",
    "refit.steps=3", "refit.new_batch=2", "refit.stored_batch=4",
)  # fmt: skip
_BALL = ("environment.count=4", "ppo.minibatch=50", "ppo.passes=4")
# name -> experiment and settings. All keep their constraint now and then, so that there are best states.
TRAININGS = {
    "oracle, probe, 2 seeds": ("hopper", (*_PROBE, *_WATCHED, "method.source=oracle", "seeds=2", "steps=24000")),
    "TraCeS, probe": ("hopper", (*_PROBE, *_WATCHED, "steps=24000")),
    "TraCeS, BallRun": ("ball_run", (*_BALL, *_WATCHED, "steps=40000")),
}
_COLLECT = (*_BALL, "collect.steps=8000", "collect.moments=3")
_PRETRAIN = ("pretrain.steps=200", "pretrain.every=50", "pretrain.batch=8", "estimator.hidden=8", "labels.interval=20")


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line without its last argument, and the file or folder that argument names.

    iterations: of a training; 0 for other commands.
    """

    line: tuple[str, ...]
    out: str
    iterations: int = 0

    def start(self, folder: pathlib.Path) -> subprocess.Popen:
        """Starts it. folder: where `out` is made."""
        return subprocess.Popen(
            [sys.executable, "-m", *self.line, str(folder / self.out)],
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, folder: pathlib.Path) -> str:
        """Runs it to its end. Returns what it said if that was not the end it should have come to."""
        child = self.start(folder)
        _, said = child.communicate()
        return f"ended with code {child.returncode}: {said.strip()}" if child.returncode else ""

    def rows(self, folder: pathlib.Path) -> int:
        """Rows of a training's metrics so far; -1 as long as there is no run folder."""
        path = folder / self.out / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else (folder / self.out).exists() - 1

    def remains(self, folder: pathlib.Path) -> dict:
        """What it left, temporary files beside it included."""
        beside = sorted(path.name for path in folder.iterdir())
        return {"beside": beside, **remains.of(folder / self.out)}


def training(name: str) -> Command:
    """One of TRAININGS."""
    experiment, settings = TRAININGS[name]
    steps = next(int(setting.partition("=")[2]) for setting in settings if setting.startswith("steps="))
    per_iteration = 4 * (20 if experiment == "hopper" else 100)
    line = ("traces_jax.train", *_settings(experiment, settings), "--run_dir")
    return Command(line, "run", steps // per_iteration)


def collecting() -> Command:
    """A small file of offline data. It replaces what is there: the kill may come after the file is complete."""
    flags = ("--episodes=30", "--overwrite", "--out")
    return Command(("traces_jax.collect", *_settings("ball_run", _COLLECT), *flags), "data.hdf5")


def pretraining(data: pathlib.Path) -> Command:
    """An estimator of a few units."""
    flags = (f"--data={data}", "--overwrite", "--out")
    return Command(("traces_jax.pretrain", *_settings("ball_run", _PRETRAIN), *flags), "estimator")


def reporting(*runs: pathlib.Path) -> Command:
    """A report on some runs."""
    return Command(("traces_jax.report", *map(str, runs), "--out"), "report")


def undisturbed(command: Command, folder: pathlib.Path) -> tuple[dict, float]:
    """What the command leaves, and how many seconds it takes. A call before that compiles its programs."""
    for number in range(2):
        own = folder / str(number)
        own.mkdir(parents=True)
        began = time.monotonic()
        if problem := command.finish(own):
            raise RuntimeError(problem)
        seconds = time.monotonic() - began
    return command.remains(own), seconds


def _settings(experiment: str, settings: tuple[str, ...]) -> list[str]:
    return ["--config", f"experiments/{experiment}.py", *(f"--config.{setting}" for setting in settings)]
