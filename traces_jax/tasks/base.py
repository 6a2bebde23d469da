"""The task protocol: that of Brax's `Env`, with a cost in addition to the reward, and two kinds of episode end.

A task is written for one environment: `reset(rng) -> State`, `step(state, action) -> State`. What a constrained
learner needs beyond Brax is in `State.info`, all float32 scalars:

  cost        true cost of the step, NaN if the task has none; only oracles and metrics may read it
  terminated  1 when the episode terminated (no bootstrapping)
  truncated   1 when the time limit was reached (values bootstrap)
  steps       steps taken in this episode
  broken      1 when the simulator's state is out of bounds or NaN; such a step also terminates

`State.done` is 1 in either case. Tasks never reset themselves: `rollout` resets them to random initial states.
"""

import abc
import dataclasses
import pathlib
import typing
from collections.abc import Iterable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from traces_jax import physics

# Our MJCF files.
MODELS = pathlib.Path(__file__).parent / "models"
# MuJoCo's own bound on positions and velocities: beyond it a simulation has diverged, even if its numbers are finite.
STATE_LIMIT = 1e10


@flax.struct.dataclass
class State:
    """One environment, with the fields of Brax's `State` (importing Brax would take half of a short startup).

    Attributes:
      pipeline_state: the mechanical state.
      obs: [O] observation.
      reward: [] reward of the last step.
      done: [] 1 when the episode has ended.
      metrics: scalars for logging.
      info: see the module docstring.
    """

    pipeline_state: physics.PhysicsState
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: dict[str, jax.Array] = flax.struct.field(default_factory=dict)
    info: dict[str, Any] = flax.struct.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Example:
    """A clip that shows people how to label.

    Attributes:
      positions: [T, nq] after each step.
      violation: the first violating step; None if there is none.
      words: what to see in it.
    """

    positions: np.ndarray
    violation: int | None
    words: str


class Task(abc.ABC):
    """The interface of a task."""

    name: str
    horizon: int
    # Whether its steps have a true cost. Without one, only people or functions can label its trajectories.
    has_cost: bool = True
    # What people who label a clip are asked, with yes for a violation; and what to look at.
    question: str = "Does anything happen that must not happen?"
    guide: str = "Accept a clip if nothing wrong happens from its beginning to its end. Otherwise reject it."
    # Whether an episode may end before the horizon.
    ends_early: bool = False
    # Action bounds. Policies may exceed them; tasks clip.
    action_low: float = -1.0
    action_high: float = 1.0

    @property
    @abc.abstractmethod
    def observation_size(self) -> int:
        """Size O of an observation."""

    @property
    @abc.abstractmethod
    def action_size(self) -> int:
        """Size A of an action."""

    @abc.abstractmethod
    def reset(self, rng: jax.Array) -> State:
        """A random initial state. rng: a key, consumed."""

    @abc.abstractmethod
    def step(self, state: State, action: jax.Array) -> State:
        """action: [A], not clipped."""

    def examples(self) -> list[Example]:
        """Clips for the introduction of those who label."""
        return []

    def clip(self, action: jax.Array) -> jax.Array:
        """An action [A], clipped to its bounds."""
        return jnp.clip(action, self.action_low, self.action_high)

    @property
    def backend(self) -> str:
        """Name of the simulator."""
        return "none"


class PhysicsTask(Task):
    """A task on a MuJoCo model: adds what replay, evaluation and rendering need."""

    physics: physics.Physics

    @abc.abstractmethod
    def reset_to(self, qpos: jax.Array, qvel: jax.Array) -> State:
        """The state that starts at qpos [nq], qvel [nv], without noise."""

    @property
    def nominal(self) -> tuple[jax.Array, jax.Array]:
        """Qpos [nq] and qvel [nv] of the initial state without noise."""
        model = self.physics.mj_model
        return jnp.asarray(model.qpos0, jnp.float32), jnp.zeros((model.nv,), jnp.float32)

    @property
    def action_size(self) -> int:
        return self.physics.mj_model.nu

    def control(self, state: State, action: jax.Array) -> jax.Array:
        """The simulator's control [nu] for an action [A] in a state."""
        del state
        return self.clip(action)

    @property
    def backend(self) -> str:
        return self.physics.name


@typing.runtime_checkable
class Posable(typing.Protocol):
    """A task whose robot can be placed anywhere on the floor."""

    def pose(self, x: jax.Array, y: jax.Array, heading: jax.Array) -> jax.Array:
        """Qpos [nq] of the robot at rest at x, y [], turned by heading [] rad."""
        ...


def initial_info() -> dict[str, jax.Array]:
    """`State.info` at the start of an episode."""
    return {name: jnp.zeros((), jnp.float32) for name in ("cost", "terminated", "truncated", "steps", "broken")}


def begin(
    pipeline: physics.PhysicsState,
    observation: jax.Array,
    *,
    metrics: Iterable[str] = (),
    memory: dict[str, jax.Array] | None = None,
) -> State:
    """The state at the start of an episode.

    observation: [O]; metrics: names of those passed to `finish` later; memory: the task's own values carried from step
    to step, in `State.info`.
    """
    zero = jnp.zeros((), jnp.float32)
    return State(
        pipeline_state=pipeline,
        obs=observation,
        reward=zero,
        done=zero,
        metrics={name: zero for name in metrics},
        info={**initial_info(), **(memory or {})},
    )


def finish(
    state: State,
    pipeline: physics.PhysicsState,
    observation: jax.Array,
    *,
    reward: jax.Array,
    terminated: jax.Array,
    horizon: int,
    metrics: dict[str, jax.Array],
    cost: jax.Array | None = None,
) -> State:
    """Finishes a step: counts it, applies the time limit, and terminates the episode if the simulator diverged.

    observation: [O]; reward, cost: []; terminated: [] bool. Without a cost it is NaN: see `Task.has_cost`.
    """
    cost = jnp.full((), jnp.nan) if cost is None else cost
    finite = jnp.all(jnp.abs(pipeline.qpos) < STATE_LIMIT) & jnp.all(jnp.abs(pipeline.qvel) < STATE_LIMIT)
    steps = state.info["steps"] + 1.0
    terminated = terminated | ~finite
    truncated = (steps >= horizon) & ~terminated
    keep = lambda value: jnp.where(finite, value, 0.0).astype(jnp.float32)  # noqa: E731
    info = {
        "cost": keep(cost),
        "terminated": terminated.astype(jnp.float32),
        "truncated": truncated.astype(jnp.float32),
        "steps": steps,
        "broken": (~finite).astype(jnp.float32),
    }
    return dataclasses.replace(
        state,
        pipeline_state=pipeline,
        obs=keep(observation),
        reward=keep(reward),
        done=(terminated | truncated).astype(jnp.float32),
        metrics=jax.tree.map(keep, metrics),
        info={**state.info, **info},
    )
