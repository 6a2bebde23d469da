"""Whole training beside OmniSafe: PPO-Lagrangian with the true cost, the same sizes, the same cores, in turns.

  python -m benchmarks.peers                               Ant, HalfCheetah and PointCircle1
  python -m benchmarks.peers --tasks point_circle1         one of them
  python -m benchmarks.peers --environments 20 --threads 2 without looking for OmniSafe's best setting

OmniSafe needs Python 3.10 and old packages, so it has a virtual environment of its own: --peers is its folder, made at
the first call from the package index. There its best setting is looked for: numbers of environments, each a process
of its own, and of PyTorch's threads. Then both train one seed from its start for as many epochs, in turns: --steps
an epoch, two hidden layers of 64, up to 40 passes over minibatches of 64 until the KL is above 0.02. Ours have 50,
since 64 does not divide an epoch: that is more work. Starting and compiling are not counted. CPU seconds are printed,
too: on a machine that does other work they say more than a clock.
"""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import time

import jax
import numpy as np

from benchmarks import foreign_python
from traces_jax import config as config_lib
from traces_jax.config import presets
from traces_jax.host import errors, runtime
from traces_jax.host.run import build as build_lib

ROOT = pathlib.Path(__file__).parent.parent
# These go together; a newer setuptools lacks pkg_resources, which an old package imports.
PACKAGES = ("omnisafe==0.5.0", "safety-gymnasium==1.0.0", "torch>=2.5", "setuptools<81")
PYTHON = "python3.10"
PASSES, MINIBATCH = 40, 50
_ENVIRONMENTS, _THREADS = (1, 2, 4, 10, 20), (1, 2)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What training took.

    Attributes:
      steps: environment steps.
      seconds: by the clock.
      cpu: seconds of all cores and processes.
      passes: of the policy update, mean over epochs.
    """

    steps: int
    seconds: float
    cpu: float
    passes: float

    @property
    def rate(self) -> float:
        """Steps in a second."""
        return self.steps / self.seconds


@dataclasses.dataclass(frozen=True)
class Peer:
    """OmniSafe on one task.

    Attributes:
      python: of its virtual environment.
      task: its name.
      horizon: an epoch needs a finished episode.
      steps: of an epoch.
    """

    python: str
    task: str
    horizon: int
    steps: int

    def best_setting(self) -> tuple[int, int]:
        """Environments and threads with the shortest epoch: its rollout, and as many passes as it may make."""
        seconds: dict[tuple[int, int], float] = {}
        update: dict[int, float] = {}
        for threads in _THREADS:
            steps = 2 * self.horizon
            update[threads] = self._run(1, threads, steps, passes=5)["update"][0] / 5 / steps
        threads = min(update, key=lambda number: update[number])
        for environments in _ENVIRONMENTS:
            steps = max(2, environments) * self.horizon
            rollout = self._run(environments, threads, steps, passes=1)["rollout"][0] / steps
            seconds[environments, threads] = self.steps * (rollout + PASSES * update[threads])
            print(
                f"{self.task}, OmniSafe with {environments} environments, {threads} threads: rollout "
                f"{1 / rollout:.0f} steps/s, a pass over {self.steps} steps {self.steps * update[threads]:.2f} s",
                flush=True,
            )
        return min(seconds, key=lambda setting: seconds[setting])

    def train(self, environments: int, threads: int, epochs: int) -> Cost:
        """Whole training from its start."""
        found = self._run(environments, threads, self.steps, passes=PASSES, epochs=epochs)
        return Cost(found["steps"], found["seconds"], found["cpu"], statistics.mean(found["passes"]))

    def _run(self, environments: int, threads: int, steps: int, passes: int, epochs: int = 1) -> dict:
        flags = {"environments": environments, "threads": threads, "steps": steps, "passes": passes, "epochs": epochs}
        command = [self.python, "-m", "benchmarks.omnisafe_training", f"--task={self.task}"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"OmniSafe failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])


class Ours:
    """Our PPO-Lagrangian with the settings of the paper, whose baselines are OmniSafe's."""

    def __init__(self, experiment: str, steps: int):
        settings = importlib.import_module(f"experiments.{experiment}").get_config()
        settings.update({"preset": "paper", "physics": "native", "method": {"source": "oracle"}})
        settings.update({"ppo": {"minibatch": MINIBATCH, "passes": PASSES, "entropy": 0.0}})
        settings.update({"environment": {"count": steps // settings.environment.steps}})
        config = config_lib.from_dict(presets.apply(settings.to_dict(), ("ppo.minibatch", "ppo.entropy")))
        assert config.iteration_steps == steps
        self.built, self.steps = build_lib.build(config), steps
        # Compiles, and reads what is only read once.
        self.train(1)

    def train(self, epochs: int) -> Cost:
        """Whole training from its start."""
        program = self.built.program
        state = jax.block_until_ready(program.init())
        begin, cpu = time.perf_counter(), time.process_time()
        passes = []
        for index in range(epochs):
            state, rows = program.chunk(state, index, 1)
            passes.append(float(np.mean(rows["ppo/passes"])))
        jax.block_until_ready(state)
        took = time.perf_counter() - begin, time.process_time() - cpu
        return Cost(self.steps * epochs, *took, statistics.mean(passes))


def compare(peer: Peer, ours: Ours, setting: tuple[int, int], epochs: int, repeats: int) -> str:
    """Trains both in turns. Returns a Markdown row."""
    pairs = []
    for _ in range(repeats):
        pairs.append((ours.train(epochs), peer.train(*setting, epochs)))
        mine, theirs = pairs[-1]
        print(f"{peer.task}: ours {mine.rate:,.0f} steps/s, OmniSafe {theirs.rate:,.0f} steps/s", flush=True)
    ratios = [mine.rate / theirs.rate for mine, theirs in pairs]
    mean = lambda side, name: statistics.mean(getattr(pair[side], name) for pair in pairs)  # noqa: E731
    cells = [
        peer.task,
        f"{mean(0, 'rate'):,.0f}",
        f"{mean(1, 'rate'):,.0f} ({setting[0]} environments, {setting[1]} threads)",
        f"{statistics.median(ratios):.0f} ({min(ratios):.0f} to {max(ratios):.0f})",
        f"{mean(1, 'cpu') / mean(0, 'cpu'):.0f}",
        f"{mean(0, 'passes'):.0f}, {mean(1, 'passes'):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains beside OmniSafe and prints both rates.")
    parser.add_argument("--tasks", nargs="+", default=["ant", "half_cheetah", "point_circle1"], help="in experiments/")
    parser.add_argument("--peers", type=pathlib.Path, default=".peers", help="virtual environment of OmniSafe")
    parser.add_argument("--epochs", type=int, default=2, help="of a measurement")
    parser.add_argument("--steps", type=int, default=20_000, help="of an epoch")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    parser.add_argument("--environments", type=int, help="OmniSafe's; default: the fastest is looked for")
    parser.add_argument("--threads", type=int, default=1, help="with --environments")
    given = parser.parse_args()
    runtime.setup()
    try:
        python = foreign_python.python_of(given.peers, "peers", PYTHON, PACKAGES)
    except errors.USER_ERRORS as error:
        parser.exit(2, f"peers: {error}\n")
    rows = []
    for name in given.tasks:
        ours = Ours(name, given.steps)
        peer = Peer(python, ours.built.config.task, ours.built.task.horizon, given.steps)
        setting = (given.environments, given.threads) if given.environments else peer.best_setting()
        rows.append(compare(peer, ours, setting, given.epochs, given.repeats))
        load = os.getloadavg()[0]
        print(rows[-1], f"load of the machine {load:.1f}, {runtime.core_count()} cores", flush=True)
    print("\n| task | ours, steps/s | OmniSafe, steps/s | times as fast | CPU seconds | passes |")
    print("|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
