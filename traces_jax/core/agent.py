"""The networks that every solver trains: an actor, a reward critic and a cost critic."""

import dataclasses
import typing

import chex
import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.core import optimize
from traces_jax.core.networks import Critic, GaussianActor
from traces_jax.core.optimize import Trained


@flax.struct.dataclass
class Agent:
    """The three networks."""

    actor: Trained
    reward_critic: Trained
    cost_critic: Trained


@dataclasses.dataclass(frozen=True)
class Modules:
    """The networks' shapes and how to apply them."""

    actor: GaussianActor
    critic: Critic

    def policy(self, params: chex.ArrayTree, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean [..., A] and log standard deviation [A] for observations [..., O]."""
        return typing.cast(tuple[jax.Array, jax.Array], self.actor.apply(params, observation))

    def value(self, params: chex.ArrayTree, observation: jax.Array) -> jax.Array:
        """Values [...] of observations [..., O]."""
        return typing.cast(jax.Array, self.critic.apply(params, observation))


def bound_noise(agent: Agent, most: jax.Array) -> Agent:
    """The agent with learned log standard deviations of at most `most` []."""
    params = agent.actor.params["params"]
    bounded = {**params, "log_std": jnp.minimum(params["log_std"], most)}
    actor = dataclasses.replace(agent.actor, params={**agent.actor.params, "params": bounded})
    return dataclasses.replace(agent, actor=actor)


def most_noise(initial_log_std: float, final_noise: optimize.Number, progress: jax.Array) -> jax.Array:
    """Upper bound [] of the learned log standard deviation. progress: [] fraction of the run completed."""
    return jnp.where(jnp.asarray(final_noise) < 1.0, initial_log_std + progress * jnp.log(final_noise), jnp.inf)


def init(modules: Modules, key: jax.Array, observation_size: int, context_size: int) -> Agent:
    """New networks. key: consumed. The reward critic reads observations, actor and cost critic read contexts."""
    observation = jnp.zeros((observation_size,), jnp.float32)
    context = jnp.zeros((context_size,), jnp.float32)
    actor, reward_critic, cost_critic = (
        module.init(module_key, inputs)
        for module, module_key, inputs in zip(
            (modules.actor, modules.critic, modules.critic),
            jax.random.split(key, 3),
            (context, observation, context),
            strict=True,
        )
    )
    return Agent(
        actor=optimize.init(actor),
        reward_critic=optimize.init(reward_critic),
        cost_critic=optimize.init(cost_critic),
    )
