"""What a second process brings: two lanes in two processes, a core each, over two lanes in one process on one core.

  python -m benchmarks.hosts

Both train BallRun with the true cost, in turns; rates are those of the rows after the first iterations. Needs taskset
(Linux).
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from traces_jax.host import cli

_REPEATS = flags.DEFINE_integer("repeats", 3, "Measurements of the ratio.")
_ITERATIONS = flags.DEFINE_integer("iterations", 100, "Of each run.")
# Iterations before the measurement.
_WARM_UP = 20


def start(
    command: Sequence[str], cores: Sequence[int], environment: Mapping[str, str], **popen: Any
) -> list[subprocess.Popen]:
    """The same command in a process on each of the cores, which run together. popen: arguments of each `Popen`."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    together = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(len(cores))}
    return [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command],
            env={**environment, **together, "JAX_PROCESS_ID": str(index)},
            **popen,
        )
        for index, core in enumerate(cores)
    ]


def main() -> int:
    """The command line."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    ratios = []
    for number in range(_REPEATS.value):
        one, two = _rate(cores[:1]), _rate(cores)
        ratios.append(two / one)
        print(f"{number + 1}: {one:.2f} and {two:.2f} iterations/s, ratio {two / one:.2f}", flush=True)
    print(f"2 processes over 1: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), aim >= 1.8")
    return cli.OK


def _rate(cores: Sequence[int]) -> float:
    """Iterations per second of two lanes in a process on each of the cores."""
    steps = _ITERATIONS.value * 10 * 250
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "traces_jax.train", "--config", "experiments/ball_run.py", "--config.seeds=2",
            "--config.method.source=oracle", "--config.environment.count=10", "--config.environment.steps=250",
            "--config.ppo.minibatch=100", f"--config.steps={steps}", "--config.run.chunk=1",
            "--config.run.evaluation_episodes=0", "--config.run.tensorboard=false",
            f"--config.run.checkpoint_every={_ITERATIONS.value}", f"--run_dir={folder}/run",
        ]  # fmt: skip
        codes = [process.wait() for process in start(command, cores, os.environ, stdout=subprocess.DEVNULL)]
        if any(codes):
            raise RuntimeError(f"a process ended with {codes}")
        rows = [json.loads(line) for line in (pathlib.Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    seconds = {row["iteration"]: row["seconds"] for row in rows}
    return (_ITERATIONS.value - 1 - _WARM_UP) / (seconds[_ITERATIONS.value - 1] - seconds[_WARM_UP])


if __name__ == "__main__":
    cli.run(main)
