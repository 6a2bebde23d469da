"""Measures and writes the rows of the table for accelerators. `accelerator` is the command."""

import importlib
import json
import pathlib
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax import config as config_lib
from traces_jax import tasks
from traces_jax.config import presets
from traces_jax.core.learner import LearnerState
from traces_jax.host import errors, files
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import memory

# Column titles by their names in the JSON file.
COLUMNS = {
    "seeds": "seeds",
    "physics": "physics alone, steps/s",
    "rollout": "rollout, steps/s",
    "training": "whole training, steps/s",
    "compile": "compile, s",
    "forecast": "memory: forecast, GB",
    "xla": "XLA, GB",
    "peak": "measured, GB",
}
_GIGABYTE = 1e9


def settings(experiment: str, given: dict[str, Any], sizes: dict[str, int]) -> config_lib.Config:
    """An experiment with what is given, then with other sizes of its environments and as many minibatches as before."""
    try:
        own = importlib.import_module(f"experiments.{experiment}").get_config().to_dict()
    except ModuleNotFoundError:
        raise errors.UserError(f"--experiment={experiment} is not right: experiments/ has others.") from None
    tree = presets.apply(own | given, list(given))
    environment = tree["environment"] | sizes
    usual = config_lib.from_dict(tree | {"steps": _multiple(tree["environment"])})
    minibatches = usual.samples // usual.ppo.minibatch
    changed = {**tree, "environment": environment, "steps": _multiple(environment)}
    samples = config_lib.from_dict(changed | {"ppo": tree["ppo"] | {"minibatch": 1}}).samples
    minibatch = next(size for size in range(max(1, samples // minibatches), 0, -1) if samples % size == 0)
    return config_lib.from_dict(changed | {"ppo": tree["ppo"] | {"minibatch": minibatch}})


def _multiple(environment: dict[str, int]) -> int:
    """A number of steps that is a whole number of iterations."""
    return 1000 * environment["count"] * environment["steps"]


def measure(config: config_lib.Config, repeats: int) -> dict[str, Any]:
    """A row of the table."""
    built = build_lib.build(config)
    program, steps = built.program, len(built.lanes) * config.iteration_steps
    began = time.perf_counter()
    compiled = program.traced(1).lower().compile()
    seconds = time.perf_counter() - began
    stated = compiled.memory_analysis()
    collect = jax.jit(program.map_lanes(lambda settings, state: program.learner.collect(settings, state, 0)[1].reward))
    physics = jax.jit(program.map_lanes(lambda settings, state: _physics(built, state)))
    state = program.init()

    def train() -> Any:
        nonlocal state
        state, rows = compiled(program.settings, state, np.int32(0))
        return state, rows

    return {
        "seeds": config.seeds,
        "physics": _rate(steps, repeats, lambda: physics(program.settings, state)),
        "rollout": _rate(steps, repeats, lambda: collect(program.settings, state)),
        "training": _rate(steps, repeats, train),
        "compile": seconds,
        "forecast": memory.iteration_bytes(config, built.task, program.grid, len(built.lanes)) / _GIGABYTE,
        "xla": memory.stated_bytes(stated) / _GIGABYTE,
        "peak": _peak() / _GIGABYTE,
    }


def _physics(built: build_lib.Built, state: LearnerState) -> jax.Array:
    """One lane: the simulator alone, for the steps of an iteration, without control."""
    task = built.task
    if not isinstance(task, tasks.PhysicsTask):
        raise errors.UserError(f"task {built.config.task!r} has no physics; choose another --experiment.")
    idle = jnp.zeros((task.physics.mj_model.nu,), jnp.float32)

    def step(pipeline, _):
        return jax.vmap(lambda one: task.physics.step(one, idle))(pipeline), None

    start = state.runner.environment.pipeline_state
    return jax.lax.scan(step, start, length=built.config.environment.steps)[0].qpos[None]


def _rate(steps: int, repeats: int, work: Callable[[], Any]) -> float:
    """Environment steps per second; the median of some calls after one that compiles."""
    jax.block_until_ready(work())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - began)
    return steps / statistics.median(times)


def _peak() -> float:
    """Bytes in use at most: of the first device; of this process where devices do not say."""
    found = jax.local_devices()[0].memory_stats() or {}
    return found.get("peak_bytes_in_use", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or isinstance(value, int) else f"{value:.3g}"


def save(folder: pathlib.Path, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Writes both files, and prints the Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"{about['task']}, {about['environments']} environments x {about['steps']} steps for each seed, "
        f"{about['devices']} x {about['device']} ({about['backend']}), {about['date']}; {versions}",
        "",
        f"| {' | '.join(COLUMNS.values())} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(text(row[name]) for name in COLUMNS)} |" for row in rows),
    ]
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    name = f"{about['device']}-{about['date']}".lower().replace(" ", "-").replace("/", "-")
    files.write_text(folder / f"{name}.json", json.dumps({**about, "rows": rows}, indent=2) + "\n")
    files.write_text(folder / f"{name}.md", "\n".join(lines) + "\n")
    print("", *lines, "", f"saved: {folder / name}.json and .md", sep="\n")
