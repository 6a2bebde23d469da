"""Small tasks with known solutions, for tests.

ProbeConstant     one step, reward 1: the value of every state is 1.
ProbeDiscount     two steps, reward 1 at the end: the value is gamma, then 1.
ProbeObservation  one step, the observation is +1 or -1 and the reward is 1 - (action - observation / 2)^2.
ProbeBudget       ten steps, reward and cost both equal the action clipped to [0, 1]: the best return is the limit.
ProbeHistory      eight steps, an action above zero earns 1, and costs 1 from the fourth such action on. Their number is
                  not observed: without a memory a policy earns 0 or violates.
ProbeHeat         eight steps, an action above zero leads to a hot place, observed as +1; others to a cold one.
                  Steps that begin in the hot place earn 1 and cost 1: which steps are guilty can be seen.
"""

import dataclasses

import jax
import jax.numpy as jnp

from traces_jax import physics
from traces_jax.tasks import base


class _Probe(base.Task):
    """Base class: the state of a probe is its observation."""

    observation_size = 1
    action_size = 1

    def __init__(self, name: str, *, backend: str, terminate_when_unhealthy: bool = False):
        del backend, terminate_when_unhealthy  # A probe has no simulator and no health.
        self.name = name

    def reset(self, rng: jax.Array) -> base.State:
        observation = self._start(rng)
        pipeline = physics.PhysicsState(
            qpos=observation, qvel=jnp.zeros((1,)), xpos=jnp.zeros((3,)), sensors=None, memory=jnp.zeros((1,))
        )
        return base.begin(pipeline, observation)

    def step(self, state: base.State, action: jax.Array) -> base.State:
        observation, reward, cost = self._advance(state, action)
        ended = state.info["steps"] + 1 >= self.horizon if self.terminates else jnp.zeros((), bool)
        return base.finish(
            state,
            dataclasses.replace(state.pipeline_state, qpos=observation, memory=self._hide(state, action)),
            observation,
            reward=reward,
            cost=cost,
            terminated=jnp.asarray(ended),
            horizon=self.horizon,
            metrics={},
        )

    terminates = True

    def _start(self, rng: jax.Array) -> jax.Array:
        del rng  # Most probes have a fixed initial state.
        return jnp.zeros((1,), jnp.float32)

    def _advance(self, state: base.State, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Observation [1], reward and cost after the action."""
        raise NotImplementedError

    def _hide(self, state: base.State, action: jax.Array) -> jax.Array:
        """Hidden state, not observed, [1]."""
        del action
        return state.pipeline_state.memory


class Constant(_Probe):
    """One step worth 1."""

    horizon = 1

    def _advance(self, state, action):
        del action
        return state.obs, jnp.ones(()), jnp.zeros(())


class Discount(_Probe):
    """The second step is worth 1; the observation counts the steps."""

    horizon = 2

    def _advance(self, state, action):
        del action
        return state.obs + 1.0, state.info["steps"], jnp.zeros(())


class Observation(_Probe):
    """The best action is half the observation."""

    horizon = 1

    def _start(self, rng):
        return jax.random.rademacher(rng, (1,), jnp.float32)

    def _advance(self, state, action):
        return state.obs, 1.0 - jnp.square(action[0] - 0.5 * state.obs[0]), jnp.zeros(())


class Budget(_Probe):
    """Every unit of return is a unit of cost. Ends by the time limit, so values bootstrap."""

    horizon = 10
    terminates = False

    def _advance(self, state, action):
        effort = jnp.clip(action[0], 0.0, 1.0)
        return state.obs, effort, effort


class History(_Probe):
    """Three free actions; their count is hidden. Ends by the time limit, so values bootstrap."""

    horizon = 8
    terminates = False

    def _advance(self, state, action):
        taken = self._hide(state, action) - state.pipeline_state.memory
        cost = taken * (state.pipeline_state.memory >= 3)
        # Penalizes actions near zero, so that a random policy with mean zero is not a solution.
        hesitation = jnp.square(1.0 - jnp.abs(action[0]))
        return state.obs, taken[0] - hesitation, cost[0]

    def _hide(self, state, action):
        return state.pipeline_state.memory + (action > 0)


class Heat(_Probe):
    """Steps in the hot place earn and cost 1. Ends by the time limit, so values bootstrap."""

    horizon = 8
    terminates = False

    def _start(self, rng):
        del rng  # Always the cold place.
        return jnp.full((1,), -1.0, jnp.float32)

    def _advance(self, state, action):
        hot = (state.obs[0] > 0).astype(jnp.float32)
        return jnp.where(action > 0, 1.0, -1.0), hot, hot
