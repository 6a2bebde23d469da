"""The speed table: every rate as a ratio to MuJoCo's own stepping, measured in the same run.

  make bench                                   all rows, about three quarters of an hour
  python -m benchmarks.speed --only rollout    one group of rows
  python -m benchmarks.speed --only tasks      rollouts of every task
  python -m benchmarks.speed --only traces     what learning the cost adds to an iteration
  python -m benchmarks.speed --only solvers    training with each solver of the paper
  python -m benchmarks.speed --only wide       thousands of environments, episodes across iterations

Ours and raw stepping are timed in turns on the same number of environments and cores, raw stepping through the actions
of the first policy's rollout, and the median of the ratios is reported: a shared machine may change speed under us,
but less so between two neighbours.
"""

import dataclasses
import functools
import importlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import mujoco.rollout
import numpy as np
import rich.console
import rich.table
from absl import flags

from traces_jax import config as config_lib
from traces_jax import tasks
from traces_jax.config import presets
from traces_jax.core import optimize
from traces_jax.estimator import network, objective, refit
from traces_jax.feedback import trajectories
from traces_jax.host import cli, runtime
from traces_jax.host.run import build as build_lib

_ONLY = flags.DEFINE_enum(
    "only",
    "all",
    ["all", "rollout", "training", "start", "memory", "tasks", "traces", "solvers", "wide"],
    "Rows to measure.",
)
_EXPERIMENT = flags.DEFINE_string("experiment", "ant", "File in experiments/ that all rows but those of `tasks` use.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Measurements of each ratio.")
_WARM_UP = flags.DEFINE_integer("warm_up", 5, "Training iterations before training is timed.")

_EXPERIMENTS = (
    "ant", "half_cheetah", "hopper", "walker2d", "point_circle1", "point_circle2", "car_circle1", "car_circle2",
    "ball_run", "car_run", "drone_run", "ant_run",
)  # fmt: skip

# Solvers of the paper, and the share of raw stepping that training with them should reach. One step of the policy in an
# iteration, as in TRPO, costs less than passes over minibatches.
_SOLVERS = {"ppo_lag": 0.75, "cppo_pid": 0.75, "cup": 0.75, "focops": 0.75, "trpo_saute": 0.85}

# The least time for which a ratio is measured.
_SECONDS = 5.0

Row = tuple[str, str, str]


def main() -> int:
    """The command line."""
    runtime.setup()
    groups: dict[str, Callable[[], list[Row]]] = {
        "rollout": lambda: [_rate("rollout alone, 1 seed", _EXPERIMENT.value, 1, learn=False, aim=">= 0.80")],
        "training": lambda: [
            _rate("training, 1 seed", _EXPERIMENT.value, 1, learn=True, aim=">= 0.50"),
            _rate("training, 8 seeds", _EXPERIMENT.value, 8, learn=True, aim=">= 0.50"),
        ],
        "start": _start,
        "memory": _memory,
        "tasks": lambda: [_rate(f"rollout, {name}", name, 1, learn=False, aim=">= 0.75") for name in _EXPERIMENTS],
        # Passes as many as a whole run of the oracle makes on average.
        "traces": lambda: [
            _overhead("ant", passes=8, aim="<= +4 %"),
            _overhead("car_run", passes=20, aim="<= +10 %"),
            _refit(),
        ],
        "solvers": lambda: [
            _rate(
                f"training, ant, {solver}, 2 seeds",
                "ant",
                2,
                learn=True,
                aim=f">= {aim:.2f}",
                method={"source": "oracle", "solver": solver},
            )
            for solver, aim in _SOLVERS.items()
        ],
        "wide": lambda: [
            _rate(f"training, {source}, 2048 x 32", "half_cheetah", 1, learn=True, aim=">= 0.60", **_wide(source))
            for source in ("oracle", "traces")
        ],
    }
    table = rich.table.Table(title=f"{_EXPERIMENT.value} on {runtime.core_count()} CPU cores")
    for column in ("what", "measured", "aim"):
        table.add_column(column)
    for name, measure in groups.items():
        if _ONLY.value in ("all", name):
            for row in measure():
                print("  ".join(row), flush=True)
                table.add_row(*row)
    rich.console.Console(width=120).print(table)
    return cli.OK


def _config(experiment: str, **changes: Any) -> config_lib.Config:
    """An experiment's settings on the native simulator, with the true cost unless `changes` say otherwise."""
    settings = importlib.import_module(f"experiments.{experiment}").get_config()
    settings.update({"physics": "native", "method": {"source": "oracle"}, **changes})
    return config_lib.from_dict(settings.to_dict())


def _wide(source: str) -> dict[str, Any]:
    """The preset for accelerators with 2048 environments and 32 steps."""
    preset = presets.accelerator("", source)
    return {
        **preset,
        "method": {"source": source},
        "steps": 2048 * 32 * 1000,
        "environment": {**preset["environment"], "count": 2048, "steps": 32},
        "ppo": {**preset["ppo"], "minibatch": 1792},
        "constraint": {"share": 0.125},
    }


def _rate(what: str, experiment: str, seeds: int, *, learn: bool, aim: str, **changes: Any) -> Row:
    """Steps per second of whole iterations, or of their rollouts alone, over raw stepping. changes: of settings."""
    config = _config(experiment, seeds=seeds, **changes)
    built = build_lib.build(config)
    program = built.program
    collect = jax.jit(program.map_lanes(lambda settings, state: program.learner.collect(settings, state, 0)[1].action))
    raw = _raw(built, np.asarray(collect(program.settings, program.init())))
    state = program.init()
    # Iterations in a measurement.
    length = config.run.chunk if learn else 1
    index = 0
    if learn:
        for index in range(0, _WARM_UP.value * length, length):
            state, _ = program.chunk(state, index, length)
            jax.block_until_ready(state)
    else:
        jax.block_until_ready(collect(program.settings, state))
    ratios: list[float] = []
    rates: list[float] = []
    first = time.perf_counter()
    # A rollout of a few milliseconds says little: then there are more of them.
    while len(ratios) < _REPEATS.value or time.perf_counter() - first < _SECONDS:
        begin = time.perf_counter()
        if learn:
            index += length
            state, _ = program.chunk(state, index, length)
            jax.block_until_ready(state)
        else:
            jax.block_until_ready(collect(program.settings, state))
        ours = (time.perf_counter() - begin) / length
        ratios.append(raw() / ours)
        rates.append(seeds * config.iteration_steps / ours)
    low, high = min(ratios), max(ratios)
    return (
        what,
        f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}), {statistics.median(rates):,.0f} steps/s",
        f"{aim} of raw",
    )


def _overhead(experiment: str, *, passes: int, aim: str) -> Row:
    """Time of TraCeS' iterations over the oracle's, in turns, with one seed on each core and equal passes."""
    equal = {"seeds": runtime.core_count(), "ppo": {"passes": passes, "target_kl": 1e9}}
    programs = {
        source: build_lib.build(_config(experiment, method={"source": source}, **equal)).program
        for source in ("oracle", "traces")
    }
    states = {source: program.init() for source, program in programs.items()}
    seconds: dict[str, list[float]] = {source: [] for source in programs}
    rollouts: dict[str, list[float]] = {source: [] for source in programs}
    length = programs["oracle"].settings.run.chunk
    for number in range(_WARM_UP.value + 4 * _REPEATS.value):
        for source, program in programs.items():
            begin = time.perf_counter()
            states[source], rows = program.chunk(states[source], number * length, length)
            jax.block_until_ready(states[source])
            if number >= _WARM_UP.value:
                seconds[source].append((time.perf_counter() - begin) / length)
                rollouts[source].append(float(np.mean(rows["stage/collect"])))
    mean = {source: statistics.mean(times) for source, times in seconds.items()}
    share = mean["traces"] / mean["oracle"] - 1.0
    # Two policies that have learned differently are in states that take MuJoCo differently long.
    moved = (statistics.mean(rollouts["traces"]) - statistics.mean(rollouts["oracle"])) / mean["oracle"]
    return (
        f"TraCeS over oracle, {experiment}, {passes} passes",
        f"{share:+.1%} ({mean['traces']:.3f} s over {mean['oracle']:.3f} s an iteration), of it rollouts {moved:+.1%}",
        aim,
    )


def _refit() -> Row:
    """Seconds of 30 gradient steps of 32 trajectories of 1000 steps, 20 new ones and a full store."""
    steps, horizon, features = 30, 1000, 35
    ends = trajectories.prefix_ends(horizon, 20, terminal_only=False)

    def rows(count: int) -> trajectories.Ring:
        key = jax.random.key(count)
        filled = trajectories.empty(count, horizon, features, len(ends))
        return trajectories.push(
            filled,
            trajectories.Trajectories(
                inputs=jax.random.normal(key, (count, horizon, features)),
                length=jnp.full((count,), horizon),
                labels=jax.random.bernoulli(key, 0.5, (count, len(ends))).astype(jnp.float32),
                mask=jnp.ones((count, len(ends)), bool),
            ),
        )

    settings = config_lib.Config()
    estimator = network.init(
        jax.random.key(0),
        features=features,
        hidden=settings.estimator.hidden,
        layers=settings.estimator.depth,
        decoder=settings.estimator.decoder,
        reads_step=settings.estimator.decoder_reads == "step",
        initial_mean=network.initial_mean(horizon),
        mean_spread=settings.estimator.initial_spread,
    )
    # An accuracy that is never reached: all steps are made.
    how = dataclasses.replace(settings.refit, passes=1, steps=steps, new_batch=8, stored_batch=24, target_accuracy=2.0)
    fit = jax.jit(
        lambda fitted, new, store: refit.refit(
            fitted,
            new,
            jnp.zeros(new.labels.shape),
            store,
            jax.random.key(1),
            refit=how,
            model=objective.model(prepare=lambda x: x, ends=ends, clamp=-7.0),
        )
    )
    given = optimize.init(estimator), rows(20).rows, rows(settings.refit.store)
    jax.block_until_ready(fit(*given))
    times = []
    for _ in range(_REPEATS.value):
        begin = time.perf_counter()
        jax.block_until_ready(fit(*given))
        times.append(time.perf_counter() - begin)
    return (
        f"refit, {steps} steps of 32 trajectories",
        f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})",
        "<= 1.5 s",
    )


def _raw(built: build_lib.Built, actions: np.ndarray) -> Callable[[], float]:
    """Seconds that `mujoco.rollout` needs on all cores for actions [S, T, B, A] from random starts."""
    task = built.task
    assert isinstance(task, tasks.PhysicsTask)
    physics = task.physics
    model = physics.mj_model
    repeat = round(physics.environment_seconds / model.opt.timestep)
    seeds, steps, count, size = actions.shape
    rows = seeds * count
    starts = jax.vmap(task.reset)(jax.random.split(jax.random.key(0), rows))
    first = starts.pipeline_state
    initial = np.concatenate([np.zeros((rows, 1)), first.qpos, first.qvel], axis=1, dtype=np.float64)
    held = np.asarray(_controls(task, starts, np.moveaxis(actions, 2, 1).reshape(rows, steps, size)), np.float64)
    held = np.repeat(held, repeat, axis=1)
    data = [mujoco.MjData(model) for _ in range(runtime.core_count())]
    pool = mujoco.rollout.Rollout(nthread=len(data))

    def seconds() -> float:
        begin = time.perf_counter()
        pool.rollout(model, data, initial, held)
        return time.perf_counter() - begin

    return seconds


@functools.partial(jax.jit, static_argnums=0)
def _controls(task: tasks.PhysicsTask, starts: tasks.State, actions: jax.Array) -> jax.Array:
    """What the simulator is given, [rows, T, nu], when actions [rows, T, A] are played from the starts."""

    def play(start: tasks.State, actions: jax.Array) -> jax.Array:
        def step(state: tasks.State, action: jax.Array) -> tuple[tasks.State, jax.Array]:
            return task.step(state, action), task.control(state, action)

        return jax.lax.scan(step, start, actions)[1]

    return jax.vmap(play)(starts, actions)


def _start() -> list[Row]:
    """Seconds from starting Python to the end of the first iteration, without and with a filled cache."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, aim in (("cold", "<= 30 s"), ("cached", "<= 10 s")):
            seconds, ready = _first_iteration(pathlib.Path(folder), name)
            text = f"{seconds:.1f} s, of which the iteration itself {seconds - ready:.1f} s"
            rows.append((f"first iteration, {name}", text, aim))
    return rows


def _first_iteration(folder: pathlib.Path, name: str) -> tuple[float, float]:
    """Starts a real run of two iterations; the second tells how long the first one's own work took."""
    caches = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "NUMBA_CACHE_DIR": str(folder / "numba")}
    environment = {**os.environ, **caches}
    run_dir = folder / name
    command = [
        sys.executable, "-m", "traces_jax.train", "--config", f"experiments/{_EXPERIMENT.value}.py",
        "--config.physics=native", "--config.method.source=oracle", "--config.steps=40000",
        "--config.run.evaluation_episodes=0",
        f"--run_dir={run_dir}",
    ]  # fmt: skip
    begin = time.perf_counter()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    marks: list[float] = []
    path = run_dir / "metrics.jsonl"
    while child.poll() is None and len(marks) < 2:
        if path.exists() and path.read_text().count("\n") > len(marks):
            marks.append(time.perf_counter() - begin)
        time.sleep(0.005)
    child.wait()
    return marks[0], marks[0] - (marks[1] - marks[0])


def _memory() -> list[Row]:
    """Peak resident memory of a run of two iterations with 8 seeds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "traces_jax.train", "--config", f"experiments/{_EXPERIMENT.value}.py",
            "--config.physics=native", "--config.method.source=oracle", "--config.seeds=8", "--config.steps=40000",
            f"--run_dir={folder}/run",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
            _, _, usage = os.wait4(child.pid, 0)
            child.returncode = 0
    return [("peak memory, 8 seeds", f"{usage.ru_maxrss / 1024**2:.2f} GB", "<= 3 GB")]


if __name__ == "__main__":
    cli.run(main)
