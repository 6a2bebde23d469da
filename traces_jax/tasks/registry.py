"""Names of tasks: one line each, and "module:Class" for user-defined tasks."""

import functools
import inspect
import numbers
from collections.abc import Callable

import jax
import jax.numpy as jnp

from traces_jax.core import own
from traces_jax.tasks import base, circle, fall, probe, run_ant, run_ball, run_car, run_drone, velocity

_TASKS: dict[str, Callable[..., base.Task]] = {
    "SafetyAntVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.ANT),
    "SafetyHalfCheetahVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.HALF_CHEETAH),
    "SafetyHopperVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.HOPPER),
    "SafetyWalker2dVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.WALKER2D),
    "SafetyHalfCheetahFall-v0": fall.Fall,
    "SafetyPointCircle1-v0": functools.partial(circle.Circle, agent=circle.POINT, level=1),
    "SafetyPointCircle2-v0": functools.partial(circle.Circle, agent=circle.POINT, level=2),
    "SafetyCarCircle1-v0": functools.partial(circle.Circle, agent=circle.CAR, level=1),
    "SafetyCarCircle2-v0": functools.partial(circle.Circle, agent=circle.CAR, level=2),
    "SafetyBallRun-v0": run_ball.Ball,
    "SafetyCarRun-v0": run_car.Car,
    "SafetyDroneRun-v0": run_drone.Drone,
    "SafetyAntRun-v0": run_ant.Ant,
    "ProbeConstant": probe.Constant,
    "ProbeDiscount": probe.Discount,
    "ProbeObservation": probe.Observation,
    "ProbeBudget": probe.Budget,
    "ProbeHistory": probe.History,
    "ProbeHeat": probe.Heat,
}

NAMES = tuple(_TASKS)


class TaskError(own.OwnError):
    """Why a task cannot be created, in one sentence."""


_users_code = functools.partial(own.users_code, error=TaskError)


def make(name: str, *, backend: str = "native", **settings) -> base.Task:
    """Builds a task. backend: "native" or "mjx". settings: the task family's own keywords."""
    if own.is_own(name):
        return _make_own(name, backend=backend, **settings)
    if name not in _TASKS:
        raise TaskError(f"task {name!r} is unknown; choose one of {', '.join(NAMES)}, or module:Class.")
    return _TASKS[name](name=name, backend=backend, **settings)


def _make_own(name: str, **settings) -> base.Task:
    """Builds a user-defined task."""
    found = own.load("task", name, base.Task, TaskError)
    try:
        inspect.signature(found).bind(name=name, **settings)
    except TypeError as error:
        raise TaskError(
            f"task {name!r} is not right: its constructor does not fit ({error}); "
            "it must be __init__(self, name, *, backend, **settings)."
        ) from None
    construct: Callable[..., base.Task] = found
    with _users_code(f"task {name!r} cannot be made"):
        task = construct(name=name, **settings)
    for size in ("horizon", "observation_size", "action_size"):
        with _users_code(f"task {name!r} has no {size}"):
            value = getattr(task, size)
        if not isinstance(value, numbers.Integral) or value < 1:
            raise TaskError(f"task {name!r} has {size}={value!r}; it must be a whole number above 0.")
    _check_step(name, task)
    return task


def _check_step(name: str, task: base.Task) -> None:
    """Traces a reset and a step without running them. Errors and wrong shapes are found before a run begins."""
    with _users_code(f"reset of task {name!r} is not right"):
        state = jax.eval_shape(lambda: task.reset(jax.random.key(0)))
    with _users_code(f"step of task {name!r} is not right"):
        after = jax.eval_shape(lambda state: task.step(state, jnp.zeros(task.action_size)), state)
    for call, found in (("reset", state), ("step", after)):
        if not isinstance(found, base.State) or getattr(found.obs, "shape", None) != (task.observation_size,):
            raise TaskError(
                f"{call} of task {name!r} is not right: it must return a State with obs of shape "
                f"({task.observation_size},), the task's observation_size."
            )
