"""The table for a GPU or TPU: make bench-accelerator. To be pasted into an issue.

  python -m benchmarks.accelerator                                          the preset's sizes; small ones on a CPU
  python -m benchmarks.accelerator --experiment ant --seeds 1,4,16 --environments 4096 --steps 32

For each number of seeds: environment steps per second of the physics alone, of rollouts and of whole training; seconds
to compile an iteration; memory as forecast, as XLA states it, and as the device measured it. Written as JSON and
Markdown, with device and versions.
"""

import datetime
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
from absl import flags

from traces_jax import config as config_lib
from traces_jax import tasks
from traces_jax.config import presets
from traces_jax.core.learner import LearnerState
from traces_jax.host import cli, errors, files, runtime
from traces_jax.host.run import build as build_lib
from traces_jax.host.run import memory

_EXPERIMENT = flags.DEFINE_string("experiment", "half_cheetah", "File in experiments/.")
_PRESET = flags.DEFINE_string("preset", "accelerator", "Its settings.")
_SEEDS = flags.DEFINE_list("seeds", None, "Numbers of seeds. Default: 1, 4 and 16; on a CPU 1 and 2.")
_ENVIRONMENTS = flags.DEFINE_integer("environments", None, "Of each seed. Default: the preset's; on a CPU 16.")
_STEPS = flags.DEFINE_integer("steps", None, "Of an iteration. Default: the preset's; on a CPU 10.")
_REPEATS = flags.DEFINE_integer("repeats", None, "Measurements of each rate. Default: 10; on a CPU 2.")
_PHYSICS = flags.DEFINE_enum("physics", "auto", ["auto", "native", "mjx"], "Simulator.")
_OUT = flags.DEFINE_string("out", "bench-accelerator", "Folder of the results.")

# Column titles by their names in the JSON file.
_COLUMNS = {
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


def main() -> int:
    """The command line."""
    runtime.setup()
    # A program from the cache would say nothing about compiling.
    jax.config.update("jax_enable_compilation_cache", False)
    on_cpu = jax.default_backend() == "cpu"
    seeds = [int(count) for count in _SEEDS.value or (["1", "2"] if on_cpu else ["1", "4", "16"])]
    repeats = _REPEATS.value or (2 if on_cpu else 10)
    stated = {"count": _ENVIRONMENTS.value, "steps": _STEPS.value}
    sizes = ({"count": 16, "steps": 10} if on_cpu else {}) | {name: size for name, size in stated.items() if size}
    rows = []
    for count in seeds:
        given = {"seeds": count, "preset": _PRESET.value, "physics": _PHYSICS.value}
        config = settings(_EXPERIMENT.value, given, sizes)
        row = measure(config, repeats)
        print("  ".join(f"{title} {_text(row[name])}" for name, title in _COLUMNS.items()), flush=True)
        rows.append(row)
    about = {
        **runtime.describe(),
        "task": config.task,
        "environments": config.environment.count,
        "steps": config.environment.steps,
        "date": datetime.date.today().isoformat(),
    }
    save(pathlib.Path(_OUT.value), rows, about)
    return cli.OK


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


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or isinstance(value, int) else f"{value:.3g}"


def save(folder: pathlib.Path, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Writes both files, and prints the Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"{about['task']}, {about['environments']} environments x {about['steps']} steps for each seed, "
        f"{about['devices']} x {about['device']} ({about['backend']}), {about['date']}; {versions}",
        "",
        f"| {' | '.join(_COLUMNS.values())} |",
        f"|{'---|' * len(_COLUMNS)}",
        *(f"| {' | '.join(_text(row[name]) for name in _COLUMNS)} |" for row in rows),
    ]
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    name = f"{about['device']}-{about['date']}".lower().replace(" ", "-").replace("/", "-")
    files.write_text(folder / f"{name}.json", json.dumps({**about, "rows": rows}, indent=2) + "\n")
    files.write_text(folder / f"{name}.md", "\n".join(lines) + "\n")
    print("", *lines, "", f"saved: {folder / name}.json and .md", sep="\n")


if __name__ == "__main__":
    cli.run(main)
