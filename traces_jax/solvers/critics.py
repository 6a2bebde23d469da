"""The fit of the critics to their targets."""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from traces_jax.config import PPOConfig
from traces_jax.core.agent import Agent, Modules
from traces_jax.core.optimize import Number
from traces_jax.solvers import minibatches
from traces_jax.solvers.minibatches import Samples


def loss(value: jax.Array, target: jax.Array) -> jax.Array:
    """Mean squared error. value, target: [N]."""
    chex.assert_equal_shape([value, target])
    return jnp.mean(jnp.square(value - target))


def step(
    modules: Modules, agent: Agent, batch: Samples, *, ppo: PPOConfig, lr: Number, reads_cost: bool
) -> tuple[Agent, dict[str, jax.Array]]:
    """One gradient step of each critic. reads_cost: whether the solver needs the cost critic; otherwise it rests."""

    def reward_loss(params, batch: Samples):
        error = loss(modules.value(params, batch.observation), batch.reward_target)
        return error + ppo.reward_critic_l2 * _squares(params), error

    def cost_loss(params, batch: Samples):
        error = loss(modules.value(params, batch.context), batch.cost_target)
        return error + ppo.cost_critic_l2 * _squares(params), error

    reward_critic, reward_error = minibatches.descend(
        agent.reward_critic, reward_loss, batch, lr=lr, max_grad_norm=ppo.max_grad_norm
    )
    agent = dataclasses.replace(agent, reward_critic=reward_critic)
    if not reads_cost:
        return agent, {"reward_critic": reward_error}
    cost_critic, cost_error = minibatches.descend(
        agent.cost_critic, cost_loss, batch, lr=lr, max_grad_norm=ppo.max_grad_norm
    )
    return dataclasses.replace(agent, cost_critic=cost_critic), {
        "reward_critic": reward_error,
        "cost_critic": cost_error,
    }


def fit(
    modules: Modules, agent: Agent, samples: Samples, key: jax.Array, *, ppo: PPOConfig, passes: int, lr: Number,
    reads_cost: bool,
) -> tuple[Agent, dict[str, jax.Array]]:  # fmt: skip
    """Fits the critics alone, for solvers whose policy takes one step. key: for shuffling, consumed."""
    end = minibatches.run(
        agent,
        samples,
        key,
        lambda agent, batch: step(modules, agent, batch, ppo=ppo, lr=lr, reads_cost=reads_cost),
        passes=passes,
        minibatch=ppo.minibatch,
    )
    return end.agent, {f"loss/{name}": value for name, value in end.losses.items()}


def _squares(params: chex.ArrayTree) -> jax.Array:
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)))
