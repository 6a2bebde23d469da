"""What a trained policy costs its users, and how far its files are from it.

  python -m benchmarks.policy --run runs/ant --out ant/

Loads it as a user's program does and plays one environment: seconds until it is loaded, until the first action, and of
each action after that, which is the call with arrays of NumPy and, compiled into a loop, `policy.step`. Then it exports
the policy to --out and plays 1000 observations with onnxruntime and with the artefact of `jax.export`, in episodes of
the policy's own task. Pin it to a core: taskset -c 0 python ...
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

OBSERVATIONS, REPEATS = 1000, 5


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Loads, plays and exports a policy, and prints seconds and errors.")
    parser.add_argument("--run", type=pathlib.Path, required=True, help="run folder")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the exported policy")
    given = parser.parse_args()

    began = time.perf_counter()
    import traces_jax

    policy = traces_jax.load(given.run)
    loaded = time.perf_counter()
    policy(np.zeros(policy.observation_size, np.float32))
    acted = time.perf_counter()
    print(
        f"{policy.task}, seed {policy.seed}: loaded after {loaded - began:.2f} s, first action {acted - loaded:.2f} s"
    )

    random = np.random.default_rng(0)
    rows = random.standard_normal((OBSERVATIONS, policy.observation_size), np.float32)
    calls = []
    for _ in range(REPEATS):
        policy.reset()
        policy(rows[0])
        calls.append(seconds(lambda: [policy(row) for row in rows]) / OBSERVATIONS)
    print(f"policy(observation): {spread(calls)}")
    print(f"policy.step in a scan: {spread(scanned(policy, rows))}")

    export = [sys.executable, "-m", "traces_jax.export", "--run", given.run, "--out", given.out, "--overwrite"]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    inputs = json.loads((given.out / "card.json").read_text())["inputs"]
    memory = inputs.get("memory", [0, 0])[1]
    for name, play in players(given.out, list(inputs)):
        print(f"{name}: memory {memory}, largest difference {difference(policy, play, memory):.1e}")


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def spread(measured: Sequence[float]) -> str:
    """Median and range, in milliseconds."""
    low, middle, high = (1e3 * value for value in (min(measured), statistics.median(measured), max(measured)))
    return f"{middle:.4f} ms ({low:.4f} to {high:.4f})"


def scanned(policy, rows: np.ndarray) -> list[float]:
    """Seconds of an action inside one compiled program."""
    import jax

    def step(memory, row):
        action, memory = policy.step(memory, row[None], np.zeros(1, np.float32))
        return memory, action

    play = jax.jit(lambda rows: jax.lax.scan(step, policy.begin(1), rows)[1])
    jax.block_until_ready(play(rows))
    return [seconds(lambda: jax.block_until_ready(play(rows))) / len(rows) for _ in range(REPEATS)]


def players(out: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[str, Callable]]:
    """Each file as a function of observation, memory and cost, as many as it has."""
    import jax.export
    import onnxruntime

    session = onnxruntime.InferenceSession(out / "policy.onnx", providers=["CPUExecutionProvider"])
    yield "onnxruntime", lambda *given: session.run(None, dict(zip(names, given, strict=True)))
    artefact = jax.export.deserialize(bytearray((out / "policy.jax").read_bytes()))
    yield "jax.export", lambda *given: [np.asarray(value) for value in artefact.call(*given)]


def difference(policy, play: Callable, memory_size: int) -> float:
    """Of actions, over as many steps of the task: the policy plays, the file is asked the same and remembers itself."""
    import gymnasium

    import traces_jax.gym  # registers the tasks

    env = gymnasium.make(f"{traces_jax.__name__}/{policy.task}")
    largest, ended, seed = 0.0, True, 0
    for _ in range(OBSERVATIONS):
        if ended:
            observation, _ = env.reset(seed=seed)
            policy.reset()
            memory, cost, seed = np.zeros((1, memory_size), np.float32), 0.0, seed + 1
        action = policy(observation, cost)
        row = [np.asarray(observation, np.float32)[None]]
        row += [memory] if memory_size else []
        row += [np.full(1, cost, np.float32)] if policy.reads_cost else []
        found, *after = play(*row)
        memory = after[0] if after else memory
        largest = max(largest, float(np.max(np.abs(found[0] - action))))
        observation, _, terminated, truncated, info = env.step(action)
        cost, ended = info["cost"], terminated or truncated
    return largest


if __name__ == "__main__":
    main()
