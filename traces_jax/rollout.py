"""Running a policy: a scan over time of vmapped environments that reset themselves from fresh random states."""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.tasks import State, Task


@flax.struct.dataclass
class RunnerState:
    """What lives on between iterations: environments [B] and the sums of their unfinished episodes [B]."""

    environment: State
    episode_return: jax.Array
    episode_cost: jax.Array


@flax.struct.dataclass
class Transitions:
    """What a learner may see, time-major [T, B, ...]. The true cost is not here.

    `next_observation` is the true last observation where an episode ended, never the one after the reset.
    """

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    next_observation: jax.Array
    terminated: jax.Array
    truncated: jax.Array


@flax.struct.dataclass
class Truth:
    """What only oracles, labelers and metrics may see, [T, B].

    The episode sums are valid where an episode ended.
    """

    cost: jax.Array
    ended: jax.Array
    broken: jax.Array
    episode_return: jax.Array
    episode_cost: jax.Array
    episode_length: jax.Array


def start(task: Task, key: jax.Array, count: int) -> RunnerState:
    """`count` environments at random starts."""
    zeros = jnp.zeros((count,), jnp.float32)
    return RunnerState(
        environment=jax.vmap(task.reset)(jax.random.split(key, count)), episode_return=zeros, episode_cost=zeros
    )


def run(
    task: Task, act: Callable[[jax.Array, jax.Array], jax.Array], runner: RunnerState, noise: jax.Array, key: jax.Array
) -> tuple[RunnerState, Transitions, Truth]:
    """Runs all environments for T steps.

    act: (observation [B, O], noise [B, A]) -> action [B, A]. noise: [T, B, A]. key: for resets, consumed.
    """
    count = noise.shape[1]

    def step(runner: RunnerState, inputs: tuple[jax.Array, jax.Array]):
        step_noise, step_key = inputs
        before = runner.environment
        action = act(before.obs, step_noise)
        after = jax.vmap(task.step)(before, action)
        ended = after.done > 0
        total_return = runner.episode_return + after.reward
        total_cost = runner.episode_cost + after.info["cost"]
        fresh = jax.vmap(task.reset)(jax.random.split(step_key, count))
        transition = Transitions(
            observation=before.obs,
            action=action,
            reward=after.reward,
            next_observation=after.obs,
            terminated=after.info["terminated"],
            truncated=after.info["truncated"],
        )
        truth = Truth(
            cost=after.info["cost"],
            ended=ended,
            broken=after.info["broken"],
            episode_return=total_return,
            episode_cost=total_cost,
            episode_length=after.info["steps"],
        )
        runner = RunnerState(
            environment=where(ended, fresh, after),
            episode_return=jnp.where(ended, 0.0, total_return),
            episode_cost=jnp.where(ended, 0.0, total_cost),
        )
        return runner, (transition, truth)

    runner, (transitions, truth) = lax.scan(step, runner, (noise, jax.random.split(key, noise.shape[0])))
    return runner, transitions, truth


def where(condition: jax.Array, yes, no):
    """Selects whole trees by a condition [B] on their leading axis."""

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return jax.tree.map(select, yes, no)
