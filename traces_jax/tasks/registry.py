"""Names of tasks: one line each, and "module:Class" for user-defined tasks."""

import contextlib
import functools
import importlib
import inspect
import numbers
import os
import pathlib
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

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
    "ProbeHeat": probe.Heat,
}

NAMES = tuple(_TASKS)
# Path prefixes of files that are not the user's: this package and Python's import system; installed packages.
_OURS = (f"{pathlib.Path(__file__).parents[1]}{os.sep}", "<frozen importlib", importlib.__file__)
_INSTALLED = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib"))
# Maximum length of a quoted exception message: some contain whole arrays.
_LONGEST_MESSAGE = 300


class TaskError(ValueError):
    """Why a task cannot be created, in one sentence."""


def is_own(name: str) -> bool:
    """Whether a name has the form module:Class, which names a class outside this package."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def make(name: str, *, backend: str = "native", **settings) -> base.Task:
    """Builds a task. backend: "native" or "mjx". settings: the task family's own keywords."""
    if is_own(name):
        return _make_own(name, backend=backend, **settings)
    if name not in _TASKS:
        raise TaskError(f"task {name!r} is unknown; choose one of {', '.join(NAMES)}, or module:Class.")
    return _TASKS[name](name=name, backend=backend, **settings)


def _make_own(name: str, **settings) -> base.Task:
    """Builds a user-defined task."""
    found = _load(name)
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise TaskError(f"task {name!r} is not right: {found.__name__} must define {missing}.")
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


def _load(name: str) -> type[base.Task]:
    module_name, class_name = name.split(":")
    with _users_code(f"task {name!r} cannot be loaded"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # The module exists; one of its imports does not.
            raise TaskError(
                f"task {name!r} cannot be loaded: there is no module {error.name!r}; start from the folder that has it."
            ) from None
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, base.Task)):
        raise TaskError(f"task {name!r} is not right: {class_name} must be a class derived from traces_jax.tasks.Task.")
    return found


@contextlib.contextmanager
def _users_code(sentence: str) -> Iterator[None]:
    """Converts any exception into a TaskError: the given sentence, the exception, and the line that raised it."""
    try:
        yield
    except TaskError:
        raise
    # A script that exits when it is imported raises SystemExit.
    except (Exception, SystemExit) as error:  # noqa: BLE001  others' code may raise anything
        raise TaskError(f"{sentence}: {_described(error)}{_place(error)}.") from None


def _described(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    message = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split()).rstrip(".")
    message = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE].rstrip()} ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _place(error: BaseException) -> str:
    """The innermost line of the user's code that raised, as text; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)] or frames
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
