"""Brax environments: every task as a `brax.envs.Env`, for Brax's trainers and wrappers.

As usual in Brax, an environment has no time limit: give the task's horizon to the trainer or to the EpisodeWrapper as
`episode_length`. The cost of a step is `state.info["cost"]`; `state.done` is 1 when the episode has terminated.

With Brax 0.14.2 on jax 0.10, the wrappers and the trainers ARS and ES work. PPO, SAC and APG fail with any environment,
including Brax's own: they call `jax.device_put_replicated`, which jax 0.10 no longer has.

Brax's AutoResetWrapper restores the initial mechanical state and observation, but not `info`. The drone keeps its rotor
speeds there, so after such a reset they are those of the episode's end.
"""

import contextlib
import dataclasses
import io
from typing import Any

import jax

from traces_jax import tasks
from traces_jax.tasks import base

# Brax imports MJX, which prints to standard output about missing packages that are not needed here.
with contextlib.redirect_stdout(io.StringIO()):
    from brax.envs.base import Env, State


def make(name: str, *, backend: str = "native", **settings) -> "TaskEnv":
    """The task called `name`. backend: "native" or "mjx"; settings: the task's own, as in `tasks.make`."""
    return TaskEnv(tasks.make(name, backend=backend, **settings))


class TaskEnv(Env):
    """A task as a Brax environment."""

    def __init__(self, task: tasks.Task):
        self.task = task

    def reset(self, rng: jax.Array) -> State:
        """A random initial state. rng: a key, consumed."""
        return _to_brax(self.task.reset(rng), metrics={}, info={})

    def step(self, state: State, action: jax.Array) -> State:
        """action: [A]."""
        before = tasks.State(
            pipeline_state=state.pipeline_state,
            obs=state.obs,
            reward=state.reward,
            done=state.done,
            metrics=state.metrics,
            # The step count is reset in every step, so that the task never truncates an episode.
            info={**state.info, **base.initial_info()},
        )
        after = self.task.step(before, action)
        after = dataclasses.replace(after, done=after.info["terminated"])
        return _to_brax(after, metrics=state.metrics, info=state.info)

    @property
    def observation_size(self) -> int:
        return self.task.observation_size

    @property
    def action_size(self) -> int:
        return self.task.action_size

    @property
    def backend(self) -> str:
        return self.task.backend


def _to_brax(state: tasks.State, *, metrics: dict[str, Any], info: dict[str, Any]) -> State:
    """metrics, info: those before the step, with entries of wrappers. The task's step count and ends are left out."""
    ours = {name: value for name, value in state.info.items() if name not in ("steps", "terminated", "truncated")}
    return State(
        pipeline_state=state.pipeline_state,
        obs=state.obs,
        reward=state.reward,
        done=state.done,
        metrics={**metrics, **state.metrics},
        info={**info, **ours},
    )
