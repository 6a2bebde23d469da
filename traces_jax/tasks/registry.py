"""Names of tasks: one line each."""

import functools
from collections.abc import Callable

from traces_jax.tasks import base, probe, velocity

_TASKS: dict[str, Callable[..., base.Task]] = {
    "SafetyAntVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.ANT),
    "SafetyHalfCheetahVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.HALF_CHEETAH),
    "SafetyHopperVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.HOPPER),
    "SafetyWalker2dVelocity-v1": functools.partial(velocity.Velocity, robot=velocity.WALKER2D),
    "ProbeConstant": probe.Constant,
    "ProbeDiscount": probe.Discount,
    "ProbeObservation": probe.Observation,
    "ProbeBudget": probe.Budget,
}

NAMES = tuple(_TASKS)


def make(name: str, *, backend: str = "native", **settings) -> base.Task:
    """Builds a task. backend: "native" or "mjx". settings: the task family's own keywords."""
    if name not in _TASKS:
        raise KeyError(f"task {name!r} is unknown; choose one of {', '.join(NAMES)}")
    return _TASKS[name](name=name, backend=backend, **settings)
