"""Tasks in the Brax protocol, with a cost in addition to the reward: see `base`."""

from traces_jax.core.own import is_own
from traces_jax.tasks.base import Example, PhysicsTask, Posable, State, Task, begin, finish
from traces_jax.tasks.registry import NAMES, TaskError, make

__all__ = [
    "Example", "NAMES", "PhysicsTask", "Posable", "State", "Task", "TaskError", "begin", "finish", "is_own", "make",
]  # fmt: skip
