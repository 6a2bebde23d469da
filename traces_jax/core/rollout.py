"""Running a policy: a scan over time of vmapped environments with automatic resets to random initial states."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.tasks import State, Task

# Initial states for resets are drawn for up to this many steps at once.
_BLOCK = 50


@flax.struct.dataclass
class Memory:
    """Recurrent memory of current episodes, of the cost source and of the solver, [B, ...] each; None for none."""

    source: jax.Array | None = None
    solver: jax.Array | None = None


@flax.struct.dataclass
class RunnerState:
    """State kept between iterations: environments [B] and the sums of their unfinished episodes [B].

    memory: the player's memory of these episodes. shortened: which of them began with a part of their time limit used
    up (see `spanning`); None if none ever does.
    """

    environment: State
    memory: Memory
    episode_return: jax.Array
    episode_cost: jax.Array
    shortened: jax.Array | None = None


@flax.struct.dataclass
class Transitions:
    """What the learner may read, time-major [T, B, ...]. It does not include the true cost.

    `next_observation` is the true last observation where an episode ended, not the one after the reset. Summaries
    before and after the step, [T, B, H], exist if the cost source has a memory. Carried values before and after it,
    [T, B, K], exist if the solver has a memory.
    """

    observation: jax.Array
    summary: jax.Array | None
    next_summary: jax.Array | None
    carried: jax.Array | None
    next_carried: jax.Array | None
    action: jax.Array
    reward: jax.Array
    next_observation: jax.Array
    terminated: jax.Array
    truncated: jax.Array

    @property
    def ended(self) -> jax.Array:
        """[T, B] where any episode ended."""
        return (self.terminated > 0) | (self.truncated > 0)


@flax.struct.dataclass
class Truth:
    """What only oracles, labelers and metrics may read, [T, B].

    ended: where an episode ended that counts: not those of `RunnerState.shortened`. There the episode sums are valid.
    watched: output of `run`'s argument `watch`, [T, B, ...].
    """

    cost: jax.Array
    ended: jax.Array
    broken: jax.Array
    episode_return: jax.Array
    episode_cost: jax.Array
    episode_length: jax.Array
    watched: Any = None


def environment_keys(key: jax.Array, first: jax.Array | int, count: int) -> jax.Array:
    """Keys [count] of environments first, first + 1, ... An environment's key does not depend on its device."""
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(first + jnp.arange(count))


def noise(keys: jax.Array, steps: int, size: int) -> jax.Array:
    """Standard normal noise [steps, B, size] from the environments' keys [B], consumed."""
    return jnp.moveaxis(jax.vmap(lambda key: jax.random.normal(key, (steps, size)))(keys), 0, 1)


@dataclasses.dataclass(frozen=True)
class Player:
    """A policy with its memory.

    Attributes:
      act: (observation [B, O], summary [B, H] or None, carried [B, K] or None, noise [B, A]) -> action [B, A].
      begin: number of episodes -> their initial memory.
      remember: (memory, observation, action, true cost [B]) -> memory after the step.
      summarize: the source's memory -> summary.
    """

    act: Callable[[jax.Array, jax.Array | None, jax.Array | None, jax.Array], jax.Array]
    begin: Callable[[int], Memory] = lambda _: Memory()
    remember: Callable[[Memory, jax.Array, jax.Array, jax.Array], Memory] = lambda memory, *_: memory
    summarize: Callable[[jax.Array | None], jax.Array | None] = lambda _: None


def start(task: Task, keys: jax.Array, memory: Memory | None = None) -> RunnerState:
    """Environments in random initial states, one for each of keys [B], consumed. memory: of new episodes."""
    zeros = jnp.zeros(keys.shape, jnp.float32)
    return RunnerState(
        environment=jax.vmap(task.reset)(keys),
        memory=memory or Memory(),
        episode_return=zeros,
        episode_cost=zeros,
    )


def run(
    task: Task,
    player: Player,
    runner: RunnerState,
    noise: jax.Array,
    keys: jax.Array,
    watch: Callable[[State], Any] = lambda _: None,
) -> tuple[RunnerState, Transitions, Truth]:
    """Runs all environments for T steps. noise: [T, B, A]. keys: [B] for resets, consumed.

    watch: applied to the states [B] after each step, before any reset. Its outputs are in `Truth.watched`.
    """

    def step(runner: RunnerState, inputs: tuple[jax.Array, State]):
        step_noise, fresh = inputs
        before = runner.environment
        summary, carried = player.summarize(runner.memory.source), runner.memory.solver
        action = player.act(before.obs, summary, carried, step_noise)
        after = jax.vmap(task.step)(before, action)
        memory = player.remember(runner.memory, before.obs, action, after.info["cost"])
        ended = after.done > 0
        total_return = runner.episode_return + after.reward
        total_cost = runner.episode_cost + after.info["cost"]
        transition = Transitions(
            observation=before.obs,
            summary=summary,
            next_summary=player.summarize(memory.source),
            carried=carried,
            next_carried=memory.solver,
            action=action,
            reward=after.reward,
            next_observation=after.obs,
            terminated=after.info["terminated"],
            truncated=after.info["truncated"],
        )
        truth = Truth(
            cost=after.info["cost"],
            ended=ended if runner.shortened is None else ended & ~runner.shortened,
            broken=after.info["broken"],
            episode_return=total_return,
            episode_cost=total_cost,
            episode_length=after.info["steps"],
            watched=watch(after),
        )
        runner = RunnerState(
            environment=where(ended, fresh, after),
            memory=where(ended, player.begin(ended.shape[0]), memory),
            episode_return=jnp.where(ended, 0.0, total_return),
            episode_cost=jnp.where(ended, 0.0, total_cost),
            shortened=None if runner.shortened is None else runner.shortened & ~ended,
        )
        return runner, (transition, truth)

    def reset(time: jax.Array, key: jax.Array) -> State:
        return task.reset(jax.random.fold_in(key, time))

    def block(runner: RunnerState, inputs: tuple[jax.Array, jax.Array]):
        # Draws initial states for a block of steps at once. Drawn step by step, the random numbers would take longer
        # than the policy. For all steps of a rollout they would need too much memory.
        block_noise, times = inputs
        fresh = jax.vmap(jax.vmap(reset, in_axes=(None, 0)), in_axes=(0, None))(times, keys)
        return lax.scan(step, runner, (block_noise, fresh))

    steps = noise.shape[0]
    length = max(n for n in range(1, min(steps, _BLOCK) + 1) if steps % n == 0)
    inputs = jax.tree.map(lambda x: x.reshape(-1, length, *x.shape[1:]), (noise, jnp.arange(steps)))
    runner, history = lax.scan(block, runner, inputs)
    transitions, truth = jax.tree.map(lambda x: x.reshape(steps, *x.shape[2:]), history)
    return runner, transitions, truth


def watched_shape(watch: Callable[[State], Any] | None, runner: RunnerState) -> Any:
    """Shapes and dtypes of the output of `watch` for one environment; None if there is no `watch`."""
    if watch is None:
        return None
    watched = jax.eval_shape(watch, runner.environment)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), watched)


def where(condition: jax.Array, yes, no):
    """`jnp.where` on trees, by a condition [B] on their leading axis."""

    def select(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return jax.tree.map(select, yes, no)
