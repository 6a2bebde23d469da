"""The loop that all solvers share: passes over shuffled minibatches, until the policy has moved far enough."""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.core import optimize
from traces_jax.core.agent import Agent
from traces_jax.core.optimize import Number, Trained
from traces_jax.solvers.base import Batch


@flax.struct.dataclass
class Samples:
    """The data of an update, [N, ...]. The reward critic reads observations, actor and cost critic read contexts.

    extra: what a solver's own loss reads besides, by name.
    """

    observation: jax.Array
    context: jax.Array
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    reward_target: jax.Array
    cost_target: jax.Array
    extra: dict[str, jax.Array] = flax.struct.field(default_factory=dict)


def samples(batch: Batch, advantage: jax.Array, **extra: jax.Array) -> Samples:
    """A batch [T, B] with one advantage [T, B] for the policy, flattened to samples [N]. extra: [T, B, ...]."""
    of_steps = Samples(
        observation=batch.observation,
        context=batch.context,
        action=batch.action,
        log_prob=batch.log_prob,
        advantage=advantage,
        reward_target=batch.reward_target,
        cost_target=batch.cost_target,
        extra=extra,
    )
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), of_steps)


@flax.struct.dataclass
class Passes:
    """Where the loop stands.

    Attributes:
      count: [] finished passes.
      agent: the networks after them.
      moved: [] how far the policy has moved.
      losses: means over the last pass, by name.
    """

    count: jax.Array
    agent: Agent
    moved: jax.Array
    losses: dict[str, jax.Array]


def run(
    agent: Agent,
    samples: Samples,
    key: jax.Array,
    step: Callable[[Agent, Samples], tuple[Agent, dict[str, jax.Array]]],
    *,
    passes: int,
    minibatch: int,
    distance: Callable[[Agent], jax.Array] = lambda agent: jnp.zeros(()),
    bound: Number = 1.0,
) -> Passes:
    """Up to `passes` passes over the samples; stops after the pass in which the distance exceeds the bound.

    key: for shuffling, consumed; step: (networks, minibatch) -> networks and losses; minibatch: its size, which must
    divide the number of samples; distance: how far the policy of these networks has moved, [].
    """
    count = samples.advantage.shape[0]

    def one_pass(before: Passes) -> Passes:
        order = jax.random.permutation(jax.random.fold_in(key, before.count), count)
        batches = jax.tree.map(lambda x: x[order].reshape(-1, minibatch, *x.shape[1:]), samples)
        agent, losses = lax.scan(step, before.agent, batches)
        return Passes(
            count=before.count + 1,
            agent=agent,
            moved=distance(agent),
            losses=jax.tree.map(jnp.mean, losses),
        )

    first = jax.tree.map(lambda leaf: leaf[:minibatch], samples)
    nothing = jax.tree.map(lambda loss: jnp.zeros(loss.shape), jax.eval_shape(step, agent, first)[1])
    start = Passes(count=jnp.zeros((), jnp.int32), agent=agent, moved=jnp.zeros(()), losses=nothing)
    return lax.while_loop(lambda now: (now.count < passes) & (now.moved <= bound), one_pass, start)


def descend(
    network: Trained, loss: Callable, batch: Samples, *, lr: Number, max_grad_norm: Number
) -> tuple[Trained, jax.Array]:
    """One gradient step on (params, batch) -> (loss, reported). Returns the network and what was reported."""
    gradient, reported = jax.grad(loss, has_aux=True)(network.params, batch)
    return optimize.step(network, gradient, lr=lr, max_grad_norm=max_grad_norm), reported
