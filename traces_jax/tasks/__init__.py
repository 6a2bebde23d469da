"""Tasks in the Brax protocol, with a cost beside the reward: see `base`."""

from traces_jax.tasks.base import PhysicsTask, State, Task
from traces_jax.tasks.registry import NAMES, make

__all__ = ["NAMES", "PhysicsTask", "State", "Task", "make"]
