"""A trained policy in Python: `policy = traces_jax.load("runs/ant")`, then `action = policy(observation)`."""

import os
import pathlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from traces_jax.core import rollout
from traces_jax.core.deployed import Deployed, Remembered
from traces_jax.host import errors, runtime
from traces_jax.host.deploy import saved as saved_lib
from traces_jax.host.deploy.saved import Saved


class Estimator:
    """The estimator of a run: what it says of episodes."""

    def __init__(self, deployed: Deployed):
        task = deployed.learner.task
        self._horizon = task.horizon
        self._sizes = task.observation_size, task.action_size
        self._credits = jax.jit(deployed.credits)

    def credits(self, observations: ArrayLike, actions: ArrayLike) -> NDArray[np.float32]:
        """The credit of each step for a violation: its expected cost, by the estimator.

        observations: [T, O] before each step; actions: [T, A] of the policy, before the task clips them. Several
        episodes of equal length at once: [T, B, O] and [T, B, A]. Returns [T] or [T, B].
        """
        return self._said(observations, actions).credit

    def probability(self, observations: ArrayLike, actions: ArrayLike) -> NDArray[np.float32]:
        """The estimated probability that the episode is acceptable up to and including each step.

        Arguments and shapes as in `credits`.
        """
        return np.exp(self._said(observations, actions).log_probability)

    def _said(self, observations: ArrayLike, actions: ArrayLike) -> Any:
        """Credits and log-probabilities, [T] or [T, B]."""
        given = [np.asarray(values, np.float32) for values in (observations, actions)]
        fits = all(
            values.ndim in (2, 3) and values.shape[-1] == size for values, size in zip(given, self._sizes, strict=True)
        )
        if not fits or given[0].shape[:-1] != given[1].shape[:-1] or not given[0].shape[0]:
            raise errors.UserError(
                f"observations {list(given[0].shape)} and actions {list(given[1].shape)} do not fit; [T, "
                f"{self._sizes[0]}] and [T, {self._sizes[1]}], or [T, B, ...], would be right."
            )
        steps, single = given[0].shape[0], given[0].ndim == 2
        # One compiled program serves all lengths: what is said of a step depends on earlier ones only.
        padding = [(0, max(self._horizon - steps, 0)), *[(0, 0)] * 2]
        padded = [np.pad(values[:, None] if single else values, padding) for values in given]
        with jax.default_device(saved_lib.cpu()):
            said = self._credits(*padded)
        return jax.tree.map(lambda leaf: np.array(leaf)[:steps, 0] if single else np.array(leaf)[:steps], said)


class Policy:
    """A trained policy. It takes the mean action, as in evaluations, and remembers the episode that it plays.

    Attributes:
      task: name of the task it was trained on.
      seed: its seed.
      iteration: finished iterations of training when it played.
      satisfied: whether it satisfied the constraint then; None if the run has no such record.
      observation_size, action_size: sizes O and A.
      reads_cost: whether it needs the true cost of each step, because it has a budget of that (Saute).
      estimator: what the run has learned about credits; None for a run with the true cost.
    """

    def __init__(self, saved: Saved):
        self._deployed = saved.deployed
        task = self._deployed.learner.task
        self.task: str = task.name
        self.seed: int = saved.lane.seed
        self.iteration: int = saved.iteration
        self.satisfied: bool | None = saved.satisfied
        self.observation_size: int = task.observation_size
        self.action_size: int = task.action_size
        self.reads_cost: bool = self._deployed.reads_cost
        self.estimator: Estimator | None = Estimator(self._deployed) if self._deployed.learner.source.learns else None
        self._now: Remembered | None = None
        self._device = saved_lib.cpu()
        self._jitted = jax.jit(self._deployed.step)
        self._jitted_reset = jax.jit(self._forget)

    def __call__(self, observation: ArrayLike, cost: ArrayLike | None = None) -> NDArray[np.float32]:
        """The action [A] for an observation [O]; for B environments side by side, [B, A] for [B, O].

        The first call after `reset` begins the episodes and decides how many there are. The task clips actions to its
        bounds; a policy may exceed them.

        cost: [] or [B], the true cost of the step before. Only a policy that `reads_cost` needs it, from the second
        step on; others ignore it, so it may always be given.
        """
        rows = np.asarray(observation, np.float32)
        single = rows.ndim == 1
        if single:
            rows = rows[None]
        if rows.ndim != 2 or rows.shape[1] != self.observation_size:
            raise errors.UserError(
                f"the observation has shape {list(np.shape(observation))}; [{self.observation_size}], or "
                f"[B, {self.observation_size}] for B environments, would be right."
            )
        with jax.default_device(self._device):
            if self._now is None:
                self._now = self.begin(rows.shape[0])
            elif self._now.started.shape != rows.shape[:1]:
                raise errors.UserError(
                    f"{rows.shape[0]} observations follow {self._now.started.shape[0]} of the step before; to begin "
                    "other episodes, call reset() first."
                )
            elif self.reads_cost and cost is None:
                raise errors.UserError(
                    "this policy has a budget of the true cost: call policy(observation, cost) with the cost of the "
                    "step before."
                )
            paid = np.zeros(len(rows), np.float32) if cost is None else np.asarray(cost, np.float32).reshape(len(rows))
            action, self._now = self._jitted(self._now, rows, paid)
        # A copy: the caller may write into it.
        actions = np.array(action)
        return actions[0] if single else actions

    def reset(self, ended: ArrayLike | None = None) -> None:
        """Begins new episodes. ended: [B] which of the environments begin one; None for all."""
        if ended is None or self._now is None:
            self._now = None
            return
        with jax.default_device(self._device):
            self._now = self._jitted_reset(self._now, np.asarray(ended, bool).reshape(self._now.started.shape))

    def begin(self, count: int) -> Remembered:
        """What `step` remembers at the start of `count` episodes, as JAX arrays."""
        return self._deployed.begin(count)

    def step(
        self, remembered: Remembered, observation: jax.Array, cost: jax.Array | None = None
    ) -> tuple[jax.Array, Remembered]:
        """The same as a pure function of JAX arrays, for use inside `jit`, `vmap` and `scan`.

        remembered: from `begin` or the step before; observation: [B, O]; cost: [B] of the step before, if the policy
        `reads_cost`. Returns actions [B, A] and what to remember.
        """
        if cost is None and self.reads_cost:
            raise errors.UserError("this policy has a budget of the true cost: give `cost`, zeros in the first step.")
        return self._deployed.step(remembered, observation, jnp.zeros(observation.shape[:1]) if cost is None else cost)

    def _forget(self, now: Remembered, ended: jax.Array) -> Remembered:
        return rollout.where(ended, self.begin(ended.shape[0]), now)


def load(run: str | os.PathLike[str], *, seed: int | None = None, step: str | int = "deployed") -> Policy:
    """The policy of a run folder.

    Args:
      run: the folder.
      seed: which seed; None for the first. Of a sweep, the first setting is taken.
      step: "deployed": the newest policy that satisfied the constraint in training; "latest"; "best"; or the finished
        iterations of a checkpoint.

    Raises:
      traces_jax.UserError: one sentence that says what is wrong with the folder or the arguments.
    """

    def say(text: str) -> None:
        warnings.warn(text, stacklevel=4)

    with runtime.quiet():
        saved = saved_lib.read(pathlib.Path(run), str(step), seed, say)
    if saved.satisfied is False:
        say(f"{saved.lane.name} of {run} never satisfied the constraint; its policy is the one that came nearest.")
    return Policy(saved)
