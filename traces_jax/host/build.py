"""From a config to the program that runs it, on the devices of this machine."""

import dataclasses

import jax

from traces_jax import config as config_lib
from traces_jax import learner, parallel, sources, tasks
from traces_jax.config import Config, Lane
from traces_jax.host import clock, errors, memory


@dataclasses.dataclass(frozen=True)
class Built:
    """A program and what it was built from."""

    config: Config
    lanes: list[Lane]
    task: tasks.Task
    program: parallel.Program
    physics: str


def build(config: Config, lanes: list[Lane] | None = None) -> Built:
    """Chooses physics and devices, and builds the program of all lanes, or of those given."""
    lanes = lanes or config_lib.lanes(config)
    backend = jax.default_backend()
    physics = choose_physics(config.physics, backend)
    grid = parallel.grid(len(lanes), config.environment.count, jax.devices())
    task = make_task(config, physics)
    _check_episodes_end(config, task)
    _check_whole_episodes(config, task)
    _check_store(config, task)
    memory.check(config, task, len(lanes), grid)
    program = parallel.make(
        lanes,
        learner.make(
            config,
            task,
            environments=grid.environments,
            one_lane_at_a_time=backend == "cpu",
            clock=clock.find(backend),
        ),
        grid,
    )
    return Built(config=config, lanes=lanes, task=task, program=program, physics=physics)


def _check_episodes_end(config: Config, task: tasks.Task) -> None:
    """Without finished episodes there is no return to show and no cost to hold against the limit."""
    settings = config.environment
    if settings.reset_each_iteration and settings.steps < task.horizon and not settings.terminate_when_unhealthy:
        raise errors.UserError(
            f"environment.steps={settings.steps} is not right: with environment.reset_each_iteration no episode of "
            f"{task.horizon} steps would ever end; {task.horizon}, or reset_each_iteration=false, would be right."
        )


def _check_whole_episodes(config: Config, task: tasks.Task) -> None:
    """Labels are for whole trajectories: a rollout must hold some, from their first step on."""
    settings = config.environment
    if config.method.source != "oracle" and (not settings.reset_each_iteration or settings.steps % task.horizon):
        raise errors.UserError(
            f"environment.steps={settings.steps}, reset_each_iteration={settings.reset_each_iteration} is not right: "
            f"labels are for whole episodes; a multiple of {task.horizon} steps, and true, would be right."
        )


def _check_store(config: Config, task: tasks.Task) -> None:
    """The trajectories of one query go into the store together: they must not overwrite each other there."""
    if config.method.source == "oracle":
        return
    picks = sources.Traces(task).schedule(config).picks
    if config.refit.store < picks:
        raise errors.UserError(
            f"refit.store={config.refit.store} is not right: a query labels up to {picks} trajectories at once "
            f"(query.batch={config.query.batch}, query.fraction={config.query.fraction}), which must fit in; "
            f"{picks} or more would be right."
        )


def make_task(config: Config, physics: str) -> tasks.Task:
    """The config's task on the given physics."""
    return tasks.make(
        config.task, backend=physics, terminate_when_unhealthy=config.environment.terminate_when_unhealthy
    )


def choose_physics(wanted: str, backend: str) -> str:
    """Native steps on CPU cores, so it is for CPU programs; MJX runs everywhere and is made for accelerators."""
    if wanted == "auto":
        return "native" if backend == "cpu" else "mjx"
    if wanted == "native" and backend != "cpu":
        raise errors.UserError(
            f"physics='native' is not right on {backend}: it steps on the CPU; use physics=mjx, or JAX_PLATFORMS=cpu."
        )
    return wanted
