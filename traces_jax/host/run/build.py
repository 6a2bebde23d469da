"""From a config to the program that runs it, on the devices of this machine."""

import dataclasses
import importlib.util

import jax

from traces_jax import config as config_lib
from traces_jax import solvers, sources, tasks
from traces_jax.config import Config, Lane
from traces_jax.core import learner, parallel
from traces_jax.feedback import labelers
from traces_jax.host import errors
from traces_jax.host.run import clock, memory
from traces_jax.physics import WARP_WORLDS


@dataclasses.dataclass(frozen=True)
class Built:
    """A program and what it was built from."""

    config: Config
    lanes: list[Lane]
    task: tasks.Task
    program: parallel.Program
    physics: str


def build(config: Config, lanes: list[Lane] | None = None) -> Built:
    """Chooses physics and devices, and builds the program for all lanes, or for those given."""
    lanes = lanes or config_lib.lanes(config)
    backend = jax.default_backend()
    physics = choose_physics(config.physics, backend, config.mjx.impl)
    grid = parallel.grid(len(lanes), config.environment.count, jax.devices())
    _check_all_take_part(grid, len(lanes))
    worlds = len(lanes) * config.environment.count // grid.mesh.size
    if physics == "mjx-warp" and worlds > WARP_WORLDS:
        raise errors.UserError(
            f"mjx.impl='warp' is not right with {worlds} environments on a device: it has room for {WARP_WORLDS}; "
            f"fewer, or mjx.impl=jax, would be right."
        )
    task = make_task(config, physics)
    _check_episodes_end(config, task)
    source = sources.make(config, task)
    source.check(config)
    solvers.make(config, task, one_lane_at_a_time=True).check(config, source)
    memory.check(config, task, len(lanes), grid)
    program = parallel.make(
        lanes,
        learner.make(
            config,
            task,
            environments=grid.environments,
            one_lane_at_a_time=backend == "cpu",
            clock=clock.find(backend),
            watch=labelers.watch(task) if source.learns and config.labels.by != labelers.ORACLE else None,
        ),
        grid,
    )
    return Built(config=config, lanes=lanes, task=task, program=program, physics=physics)


def _check_all_take_part(grid: parallel.Grid, lanes: int) -> None:
    """Refuses a run in which a process would have nothing to do: it cannot even follow the others."""
    processes = jax.process_count()
    if len({device.process_index for device in grid.mesh.devices.flat}) < processes:
        raise errors.UserError(
            f"seeds times settings = {lanes} is not right in {processes} processes with {jax.device_count()} devices: "
            f"lanes, or the environments of each, must divide over all; {jax.device_count()} lanes would be right."
        )


def _check_episodes_end(config: Config, task: tasks.Task) -> None:
    """Raises a ConfigError if no episode could ever finish: there would be no returns and no constraint measure."""
    settings = config.environment
    if settings.reset_each_iteration and settings.steps < task.horizon and not settings.terminate_when_unhealthy:
        raise errors.UserError(
            f"environment.steps={settings.steps} is not right: with environment.reset_each_iteration no episode of "
            f"{task.horizon} steps would ever end; {task.horizon}, or reset_each_iteration=false, would be right."
        )


def make_task(config: Config, physics: str) -> tasks.Task:
    """The config's task on the given physics."""
    return tasks.make(
        config.task, backend=physics, terminate_when_unhealthy=config.environment.terminate_when_unhealthy
    )


def choose_physics(wanted: str, backend: str, impl: str = "jax") -> str:
    """The physics backend. "native" runs on CPU cores only; MJX runs everywhere and is meant for accelerators.

    impl: of MJX. MuJoCo Warp runs on NVIDIA GPUs only, and is a package of its own.
    """
    if wanted == "auto":
        wanted = "native" if backend == "cpu" else "mjx"
    if wanted == "mjx" and impl == "warp":
        if backend != "gpu" or importlib.util.find_spec("warp") is None:
            missing, elsewhere = "the package warp-lang is missing", f"it runs on NVIDIA GPUs, not on {backend}"
            why = missing if backend == "gpu" else elsewhere
            raise errors.UserError(f"mjx.impl='warp' is not right here: {why}; mjx.impl=jax runs everywhere.")
        return "mjx-warp"
    if wanted == "native" and backend != "cpu":
        raise errors.UserError(
            f"physics='native' is not right on {backend}: it steps on the CPU; use physics=mjx, or JAX_PLATFORMS=cpu."
        )
    return wanted
