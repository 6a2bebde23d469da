"""PPO: clipped policy updates and critic regression in minibatches, until the policy exceeds the target KL."""

from collections.abc import Callable

import chex
import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.config import PPOConfig
from traces_jax.core import distributions, optimize
from traces_jax.core.agent import Agent, Modules
from traces_jax.core.optimize import Number, Trained
from traces_jax.solvers.base import Batch


@flax.struct.dataclass
class Samples:
    """The data of an update, [N, ...]. The reward critic reads observations, actor and cost critic read contexts."""

    observation: jax.Array
    context: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    reward_target: jax.Array
    cost_target: jax.Array


def samples(batch: Batch, advantage: jax.Array) -> Samples:
    """A batch [T, B] with one advantage [T, B] for the policy, flattened to samples [N]."""
    of_steps = Samples(
        observation=batch.observation,
        context=batch.context,
        action=batch.action,
        log_prob=batch.log_prob,
        advantage=advantage,
        reward_target=batch.reward_target,
        cost_target=batch.cost_target,
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), of_steps)


def actor_rate(ppo: PPOConfig, progress: jax.Array) -> jax.Array:
    """The actor's learning rate []. progress: [] fraction of the run completed."""
    left = 1.0 - progress if ppo.actor_lr_decay else 1.0
    return jnp.asarray(ppo.actor_lr * left, jnp.float32)


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
    """One gradient step on a batch. Returns the network and the loss without penalties."""
    gradient, reported = jax.grad(loss, has_aux=True)(network.params, batch)
    return optimize.step(network, gradient, lr=lr, max_grad_norm=max_grad_norm), reported


def _squares(params: chex.ArrayTree) -> jax.Array:
    return jnp.asarray(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)))
