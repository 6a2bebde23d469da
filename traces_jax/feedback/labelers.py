"""Who labels: the setting `labels.by`.

  oracle           the labeler that knows the true cost, inside the compiled program
  people           on the page that `python -m traces_jax.label` serves
  labels.jsonl     a file of labels, see docs/labeling.md
  module:function  a function of the user's own: `Shown` of N trajectories -> [N] the first violating step, -1 for none.
                   Written with jax.numpy it is compiled and runs on the devices; any other runs on the host.

All but the oracle see trajectories without costs. A run that they label computes nothing from the true cost.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from traces_jax.core import own
from traces_jax.feedback.trajectories import Shown
from traces_jax.tasks import PhysicsTask, State, Task

ORACLE, PEOPLE, FILE, FUNCTION = "oracle", "people", "file", "function"

Judge = Callable[[Shown], Any]


class LabelerError(own.OwnError):
    """Why a function cannot label, in one sentence."""


def kind(by: str) -> str:
    """Which of the four a value of `labels.by` is."""
    if by in (ORACLE, PEOPLE):
        return by
    return FUNCTION if own.is_own(by) else FILE


@functools.cache
def load(by: str) -> Judge:
    """The function that labels.by names."""
    found = own.find("labels.by", by, LabelerError)
    if not callable(found):
        raise LabelerError(f"labels.by {by!r} is not right: {by.partition(':')[2]} must be a function.")
    return found


def watch(task: Task) -> Callable[[State], jax.Array] | None:
    """Reads what a labeler is shown of a state besides observations: positions, for tasks with a simulator."""
    return (lambda state: state.pipeline_state.qpos) if isinstance(task, PhysicsTask) else None


def compiles(by: str, task: Task, count: int) -> bool:
    """Whether a function that labels up to `count` trajectories at a time can be compiled."""
    number: Any = lambda *sizes: jax.ShapeDtypeStruct((count, *sizes), jnp.float32)  # noqa: E731
    length: Any = jax.ShapeDtypeStruct((count,), jnp.int32)
    shown = Shown(
        observation=number(task.horizon, task.observation_size),
        action=number(task.horizon, task.action_size),
        length=length,
        positions=number(task.horizon, task.physics.mj_model.nq) if isinstance(task, PhysicsTask) else None,
    )
    judge = load(by)
    try:
        found = jax.eval_shape(judge, shown)
    except Exception:  # noqa: BLE001  a function that needs numbers raises anything when it is given tracers
        return False
    _check(by, found, count)
    return True


def judged(by: str, shown: Shown) -> Any:
    """The first violating step [N] of each trajectory, or -1, by a function. Runs inside or outside of a program."""
    with own.users_code(f"labels.by {by!r} failed", LabelerError):
        first = load(by)(shown)
    _check(by, first, shown.length.shape[0])
    return first


def _check(by: str, found: Any, count: int) -> None:
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
    if shape != (count,) or dtype is None or not jnp.issubdtype(dtype, jnp.integer):
        raise LabelerError(
            f"labels.by {by!r} is not right: it must return one integer for each of {count} trajectories, the first "
            f"violating step or -1, not {type(found).__name__}{'' if shape is None else f' {list(shape)}'} "
            f"{'' if dtype is None else dtype}".rstrip()
            + "."
        )


def shown(inputs: Any, length: Any, positions: Any, observation_size: int) -> Shown:
    """What a labeler sees of trajectories with inputs [N, T, F], observation and action together."""
    return Shown(inputs[..., :observation_size], inputs[..., observation_size:], length, positions)
