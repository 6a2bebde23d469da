"""Names of tasks: one line each, and "module:Class" for a task of the user's own."""

import functools
import importlib
import re
from collections.abc import Callable

from traces_jax.tasks import base, circle, probe, run_ant, run_ball, run_car, run_drone, velocity

_TASKS: dict[str, Callable[..., base.Task]] = {
    "SafetyAntVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.ANT),
    "SafetyHalfCheetahVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.HALF_CHEETAH),
    "SafetyHopperVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.HOPPER),
    "SafetyWalker2dVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.WALKER2D),
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
}

NAMES = tuple(_TASKS)


class TaskError(ValueError):
    """One sentence on a task that cannot be had."""


def is_own(name: str) -> bool:
    """Whether a name has the form module:Class, which names a class outside this package."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def make(name: str, *, backend: str = "native", **settings) -> base.Task:
    """Builds a task. backend: "native" or "mjx". settings: the task family's own keywords."""
    if is_own(name):
        return _load(name)(name=name, backend=backend, **settings)
    if name not in _TASKS:
        raise TaskError(f"task {name!r} is unknown; choose one of {', '.join(NAMES)}, or module:Class.")
    return _TASKS[name](name=name, backend=backend, **settings)


def _load(name: str) -> Callable[..., base.Task]:
    module_name, class_name = name.split(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # The module is there; something that it imports is not.
        raise TaskError(
            f"task {name!r} cannot be loaded: there is no module {error.name!r}; start from the folder that has it."
        ) from None
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, base.Task)):
        raise TaskError(f"task {name!r} is not right: {class_name} must be a class derived from traces_jax.tasks.Task.")
    return found
