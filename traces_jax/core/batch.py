"""From a rollout with costs to the batch a solver learns from: normalization, advantages and targets."""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax import solvers
from traces_jax.config import Config
from traces_jax.core import distributions, normalize, rollout
from traces_jax.core.agent import Agent
from traces_jax.core.rollout import Transitions
from traces_jax.solvers import advantages

# In tolerances. Costs whose standard deviation is smaller are noise around a constraint that is satisfied, and must not
# be enlarged to the size of rewards.
_SMALLEST_DEVIATION = 0.01


@flax.struct.dataclass
class Normalizers:
    """Statistics of everything that is normalized.

    Attributes:
      observation, reward, cost: over the whole run.
      summary: the same of the source's summaries; None for sources without memory.
    """

    observation: normalize.RunningStatistics
    summary: normalize.RunningStatistics | None
    reward: normalize.RunningStatistics
    cost: normalize.RunningStatistics


def init(observation_size: int, summary_size: int, known: normalize.RunningStatistics | None) -> Normalizers:
    """Empty statistics. known: of observations seen before the run, or None."""
    return Normalizers(
        observation=known if known is not None else normalize.init((observation_size,)),
        summary=normalize.init((summary_size,)) if summary_size else None,
        reward=normalize.init(()),
        cost=normalize.init(()),
    )


def observe(config: Config, normalizers: Normalizers, observation: jax.Array) -> jax.Array:
    """The observation [..., O] as networks read it."""
    if config.normalize.observations:
        return normalize.apply(normalizers.observation, observation)
    return observation


def context(
    normalizers: Normalizers, observed: jax.Array, summary: jax.Array | None, carried: jax.Array | None
) -> jax.Array:
    """Input of actor and cost critic: normalized observation, normalized summary and values the solver carries."""
    parts = [observed]
    if summary is not None and normalizers.summary is not None:
        parts.append(normalize.apply(normalizers.summary, summary))
    if carried is not None:
        parts.append(carried)
    return jnp.concatenate(parts, axis=-1) if len(parts) > 1 else observed


def cost_unit(cost: jax.Array, tolerance: jax.Array) -> jax.Array:
    """What the costs of an iteration are divided by [], so that a multiplier means the same whatever their size.

    The standard deviation of these very costs: credits fall a thousandfold over a run, and statistics since its start
    would make the multiplier weigh nothing. The mean is not subtracted (see `normalize.scale`), and nothing is cut, so
    that a cost that concentrates on few steps keeps its weight. cost: [T, B]; tolerance: [] see `Verdict`.
    """
    return jnp.std(cost) + _SMALLEST_DEVIATION * tolerance


def make(
    config: Config,
    solver: solvers.Solver,
    agent: Agent,
    normalizers: Normalizers,
    transitions: Transitions,
    cost: jax.Array,
    *,
    tolerance: jax.Array,
    learned: bool,
) -> tuple[solvers.Batch, Normalizers, dict[str, jax.Array]]:
    """A rollout with its advantages and targets, the updated statistics, and scalars.

    Observations are normalized with the statistics used during the rollout, so that the first policy ratio is 1.
    Rewards and costs are not policy inputs, so they use the updated statistics. cost: [T, B] of every step; tolerance:
    [] see `Verdict`; learned: whether the cost comes from an estimator.
    """
    summary = normalizers.summary
    if summary is not None:
        assert transitions.summary is not None
        summary = normalize.update(summary, transitions.summary)
    reward = solver.shape_reward(config, transitions.reward, transitions.next_carried)
    updated = Normalizers(
        observation=normalize.update(normalizers.observation, transitions.observation),
        summary=summary,
        reward=normalize.update(normalizers.reward, reward),
        cost=normalize.update(normalizers.cost, cost),
    )
    if config.normalize.rewards:
        reward = normalize.scale(updated.reward, reward)
    unit = jnp.ones(())
    if config.normalize.costs == "iteration" and learned:
        unit = cost_unit(cost, tolerance)
        cost = cost / unit
    elif config.normalize.costs == "always" or (config.normalize.costs == "learned" and learned):
        cost = normalize.scale(updated.cost, cost)
    observed = observe(config, normalizers, transitions.observation)
    next_observed = observe(config, normalizers, transitions.next_observation)
    read = functools.partial(context, normalizers)
    observation = read(observed, None, transitions.carried)
    next_carried = transitions.next_carried
    if next_carried is not None:
        last = solver.carried_at_end(config, next_carried)
        next_carried = rollout.where(transitions.truncated > 0, last, next_carried)
    next_observation = read(next_observed, None, next_carried)
    full = read(observed, transitions.summary, transitions.carried)
    next_full = read(next_observed, transitions.next_summary, next_carried)
    estimate = functools.partial(advantages.gae, truncated=transitions.truncated)
    # What is labelled ends with the episode, also at the horizon: nothing that comes after it costs.
    ends = learned and not config.constraint.beyond_horizon
    over = jnp.maximum(transitions.terminated, transitions.truncated) if ends else transitions.terminated
    modules = solver.modules
    reward_advantage, reward_target = estimate(
        reward,
        modules.value(agent.reward_critic.params, observation),
        modules.value(agent.reward_critic.params, next_observation),
        terminated=transitions.terminated,
        gamma=config.ppo.gamma,
        decay=config.ppo.gae_lambda,
    )
    cost_advantage, cost_target = estimate(
        cost,
        modules.value(agent.cost_critic.params, full),
        modules.value(agent.cost_critic.params, next_full),
        terminated=over,
        gamma=config.ppo.gamma,
        decay=config.ppo.cost_gae_lambda,
    )
    # How much of the variance of the costs to come the critic knows.
    explained = 1.0 - jnp.var(cost_advantage) / jnp.maximum(jnp.var(cost_target), 1e-12)
    row = {"cost_critic/explained": explained, "cost/unit": unit}
    mean, log_std = modules.policy(agent.actor.params, full)
    return (
        solvers.Batch(
            observation=observation,
            context=full,
            action=transitions.action,
            log_prob=distributions.log_prob(mean, log_std, transitions.action),
            mean=mean,
            log_std=log_std,
            reward_advantage=reward_advantage,
            cost_advantage=cost_advantage,
            reward_target=reward_target,
            cost_target=cost_target,
        ),
        updated,
        row,
    )
