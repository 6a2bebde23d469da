"""PPO: clipped policy updates and critic regression in minibatches, until the policy has moved far enough."""

import dataclasses
import typing
from collections.abc import Callable

import chex
import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.config import PPOConfig
from traces_jax.core import distributions, optimize
from traces_jax.core.networks import Critic, GaussianActor
from traces_jax.core.optimize import Number, Trained


@flax.struct.dataclass
class Agent:
    """The three networks."""

    actor: Trained
    reward_critic: Trained
    cost_critic: Trained


@flax.struct.dataclass
class Samples:
    """What an update learns from, [N, ...]. The reward critic reads observations, actor and cost critic contexts."""

    observation: jax.Array
    context: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    reward_target: jax.Array
    cost_target: jax.Array


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


def init(modules: Modules, key: jax.Array, observation_size: int, summary_size: int) -> Agent:
    """Fresh networks. key: consumed."""
    observation = jnp.zeros((observation_size,), jnp.float32)
    context = jnp.zeros((observation_size + summary_size,), jnp.float32)
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


def clipped_loss(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip: Number) -> jax.Array:
    """The clipped surrogate, negated. All arrays: [N]. Returns a scalar."""
    chex.assert_rank([log_prob, old_log_prob, advantage], 1)
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage))


def critic_loss(value: jax.Array, target: jax.Array) -> jax.Array:
    """Mean squared error. value, target: [N]."""
    chex.assert_equal_shape([value, target])
    return jnp.mean(jnp.square(value - target))


def update(
    modules: Modules, agent: Agent, samples: Samples, key: jax.Array, *, ppo: PPOConfig, actor_lr: Number
) -> tuple[Agent, dict[str, jax.Array]]:
    """Up to `ppo.passes` passes over the samples; stops after the pass in which KL(old || new) exceeds the target.

    key: for shuffling, consumed. Returns the new agent and scalars.
    """
    count = samples.advantage.shape[0]
    old_mean, old_log_std = modules.policy(agent.actor.params, samples.context)

    def actor_loss(params, batch: Samples):
        mean, log_std = modules.policy(params, batch.context)
        log_prob = distributions.log_prob(mean, log_std, batch.action)
        surrogate = clipped_loss(log_prob, batch.log_prob, batch.advantage, ppo.clip)
        return surrogate - ppo.entropy * distributions.entropy(log_std), surrogate

    def reward_critic_loss(params, batch: Samples):
        loss = critic_loss(modules.value(params, batch.observation), batch.reward_target)
        return loss + ppo.reward_critic_l2 * _squares(params), loss

    def cost_critic_loss(params, batch: Samples):
        loss = critic_loss(modules.value(params, batch.context), batch.cost_target)
        return loss + ppo.cost_critic_l2 * _squares(params), loss

    def minibatch_step(agent: Agent, batch: Samples):
        reward_critic, reward_loss = _descend(
            agent.reward_critic, reward_critic_loss, batch, ppo.critic_lr, ppo.max_grad_norm
        )
        cost_critic, cost_loss = _descend(agent.cost_critic, cost_critic_loss, batch, ppo.critic_lr, ppo.max_grad_norm)
        actor, surrogate = _descend(agent.actor, actor_loss, batch, actor_lr, ppo.max_grad_norm)
        losses = {"actor": surrogate, "reward_critic": reward_loss, "cost_critic": cost_loss}
        return Agent(actor=actor, reward_critic=reward_critic, cost_critic=cost_critic), losses

    def one_pass(carry: _Pass) -> _Pass:
        order = jax.random.permutation(jax.random.fold_in(key, carry.index), count)
        batches = jax.tree.map(lambda x: x[order].reshape(-1, ppo.minibatch, *x.shape[1:]), samples)
        agent, losses = lax.scan(minibatch_step, carry.agent, batches)
        mean, log_std = modules.policy(agent.actor.params, samples.context)
        return _Pass(
            index=carry.index + 1,
            agent=agent,
            kl=jnp.mean(distributions.kl(old_mean, old_log_std, mean, log_std)),
            losses=jax.tree.map(jnp.mean, losses),
        )

    nothing = {name: jnp.zeros(()) for name in ("actor", "reward_critic", "cost_critic")}
    start = _Pass(index=jnp.zeros((), jnp.int32), agent=agent, kl=jnp.zeros(()), losses=nothing)
    end = lax.while_loop(lambda carry: (carry.index < ppo.passes) & (carry.kl <= ppo.target_kl), one_pass, start)
    _, log_std = modules.policy(end.agent.actor.params, samples.context[0])
    scalars = {
        "ppo/passes": end.index.astype(jnp.float32),
        "ppo/kl": end.kl,
        "ppo/std": jnp.mean(jnp.exp(log_std)),
        **{f"loss/{name}": loss for name, loss in end.losses.items()},
    }
    return end.agent, scalars


@flax.struct.dataclass
class _Pass:
    index: jax.Array
    agent: Agent
    kl: jax.Array
    losses: dict[str, jax.Array]


def _descend(
    network: Trained, loss: Callable, batch: Samples, lr: Number, max_grad_norm: Number
) -> tuple[Trained, jax.Array]:
    """One step down the loss of a batch. Returns the network and the loss without penalties."""
    gradient, reported = jax.grad(loss, has_aux=True)(network.params, batch)
    return optimize.step(network, gradient, lr=lr, max_grad_norm=max_grad_norm), reported


def _squares(params: chex.ArrayTree) -> jax.Array:
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)))
