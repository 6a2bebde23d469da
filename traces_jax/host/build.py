"""From a config to the program that runs it, on the devices of this machine."""

import dataclasses

import jax

from traces_jax import config as config_lib
from traces_jax import learner, parallel, tasks
from traces_jax.config import Config, Lane
from traces_jax.host import errors, runtime


@dataclasses.dataclass(frozen=True)
class Built:
    """A program and what it was built from."""

    config: Config
    lanes: list[Lane]
    task: tasks.Task
    program: parallel.Program
    physics: str


def build(config: Config) -> Built:
    """Chooses physics and devices, and builds the program."""
    lanes = config_lib.lanes(config)
    backend = jax.default_backend()
    physics = choose_physics(config.physics, backend)
    devices = jax.devices()[: parallel.device_count(len(lanes), len(jax.devices()))]
    task = make_task(config, physics, threads=max(1, runtime.core_count() // len(devices)))
    program = parallel.make(
        config, lanes, learner.make(config, task, one_lane_at_a_time=backend == "cpu"), devices
    )
    return Built(config=config, lanes=lanes, task=task, program=program, physics=physics)


def make_task(config: Config, physics: str, threads: int) -> tasks.Task:
    """The config's task on the given physics."""
    return tasks.make(
        config.task, backend=physics, threads=threads,
        terminate_when_unhealthy=config.environment.terminate_when_unhealthy,
    )


def choose_physics(wanted: str, backend: str) -> str:
    """native steps on CPU cores, so it is for CPU programs; MJX runs everywhere and is made for accelerators."""
    if wanted == "auto":
        return "native" if backend == "cpu" else "mjx"
    if wanted == "native" and backend != "cpu":
        raise errors.UserError(
            f"physics='native' is not right on {backend}: it steps on the CPU; use physics=mjx, or JAX_PLATFORMS=cpu."
        )
    return wanted
