"""PPO: clipped policy updates and critic regression in minibatches, until the policy exceeds the target KL.

Proximal policy optimization algorithms (Schulman et al., 2017). Solvers with another first-order loss call `update`
with it.
"""

import dataclasses
from collections.abc import Callable

import chex
import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.config import PPOConfig
from traces_jax.core import agent as agent_lib
from traces_jax.core import distributions
from traces_jax.core.agent import Agent, Modules
from traces_jax.core.optimize import Number, Trained
from traces_jax.solvers import advantages, critics, minibatches
from traces_jax.solvers.base import AgentState, Solver
from traces_jax.solvers.minibatches import Samples, samples

__all__ = ["PPO", "Acting", "Loss", "Samples", "actor_rate", "actor_step", "clipped_loss", "samples", "update"]


@flax.struct.dataclass
class Acting:
    """The policy being trained, on a minibatch: mean [N, A], log_std [A], log_prob [N] of the actions taken."""

    mean: jax.Array
    log_std: jax.Array
    log_prob: jax.Array


# What the actor minimizes, without the entropy bonus.
Loss = Callable[[Acting, Samples], jax.Array]


class PPO(Solver):
    """Maximizes the return and ignores the cost."""

    def init(self, config, key, observation_size, context_size):
        return AgentState(agent=agent_lib.init(self.modules, key, observation_size, context_size))

    def update(self, config, state, batch, verdict, key, progress):
        del verdict
        agent, row = update(
            self.modules,
            state.agent,
            samples(batch, advantages.standardize(batch.reward_advantage)),
            key,
            ppo=config.ppo,
            actor_lr=actor_rate(config.ppo, progress),
            reads_cost=False,
        )
        return AgentState(agent=agent), row


def actor_rate(ppo: PPOConfig, progress: jax.Array) -> jax.Array:
    """The actor's learning rate []. progress: [] fraction of the run completed."""
    left = 1.0 - progress if ppo.actor_lr_decay else 1.0
    return jnp.asarray(ppo.actor_lr * left, jnp.float32)


def clipped_loss(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip: Number) -> jax.Array:
    """The clipped surrogate, negated. All arrays: [N]. Returns a scalar."""
    chex.assert_rank([log_prob, old_log_prob, advantage], 1)
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.mean(jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage))


def actor_step(
    modules: Modules, actor: Trained, batch: Samples, loss: Loss, *, entropy: Number, lr: Number, max_grad_norm: Number
) -> tuple[Trained, jax.Array]:
    """One gradient step of the actor. Returns it and the loss without the entropy bonus."""

    def objective(params, batch: Samples):
        mean, log_std = modules.policy(params, batch.context)
        value = loss(Acting(mean, log_std, distributions.log_prob(mean, log_std, batch.action)), batch)
        return value - entropy * distributions.entropy(log_std), value

    return minibatches.descend(actor, objective, batch, lr=lr, max_grad_norm=max_grad_norm)


def update(
    modules: Modules,
    agent: Agent,
    samples: Samples,
    key: jax.Array,
    *,
    ppo: PPOConfig,
    actor_lr: Number,
    loss: Loss | None = None,
    target_kl: Number | None = None,
    reads_cost: bool = True,
) -> tuple[Agent, dict[str, jax.Array]]:
    """Up to `ppo.passes` passes over the samples; stops after the pass in which KL(old || new) exceeds the target.

    key: for shuffling, consumed; loss: what the actor minimizes, the clipped surrogate if None; target_kl:
    `ppo.target_kl` if None; reads_cost: whether the cost critic is fitted too. Returns the new agent and scalars.
    """
    old_mean, old_log_std = modules.policy(agent.actor.params, samples.context)

    def clipped(now: Acting, batch: Samples) -> jax.Array:
        return clipped_loss(now.log_prob, batch.log_prob, batch.advantage, ppo.clip)

    def step(agent: Agent, batch: Samples) -> tuple[Agent, dict[str, jax.Array]]:
        agent, losses = critics.step(modules, agent, batch, ppo=ppo, lr=ppo.critic_lr, reads_cost=reads_cost)
        actor, value = actor_step(
            modules,
            agent.actor,
            batch,
            loss or clipped,
            entropy=ppo.entropy,
            lr=actor_lr,
            max_grad_norm=ppo.max_grad_norm,
        )
        return dataclasses.replace(agent, actor=actor), {"actor": value, **losses}

    def moved(agent: Agent) -> jax.Array:
        return jnp.mean(distributions.kl(old_mean, old_log_std, *modules.policy(agent.actor.params, samples.context)))

    end = minibatches.run(
        agent,
        samples,
        key,
        step,
        passes=ppo.passes,
        minibatch=ppo.minibatch,
        distance=moved,
        bound=ppo.target_kl if target_kl is None else target_kl,
    )
    _, log_std = modules.policy(end.agent.actor.params, samples.context[0])
    return end.agent, {
        "ppo/passes": end.count.astype(jnp.float32),
        "ppo/kl": end.moved,
        "ppo/std": jnp.mean(jnp.exp(log_std)),
        "ppo/actor_lr": jnp.asarray(actor_lr),
        **{f"loss/{name}": value for name, value in end.losses.items()},
    }
