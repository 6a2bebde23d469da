"""The order of the algorithm. Everything else is a small room that this page calls.

One iteration: collect -> judge -> multiplier -> advantages -> policy update -> row. Judging is what the source of costs
does (`sources`): the oracle reads the true cost, TraCeS picks, labels, refits and credits.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax import sources
from traces_jax.config import Config
from traces_jax.core import distributions, episodes, normalize, rollout
from traces_jax.core.keys import Stream, stream
from traces_jax.core.networks import Critic, GaussianActor
from traces_jax.feedback import labels
from traces_jax.solvers import advantages, multipliers, ppo
from traces_jax.tasks import Task

# Gives back an array, not before the time was read, and that time: microseconds, uint32 []; they may wrap.
Clock = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


@flax.struct.dataclass
class Normalizers:
    """Running statistics of everything that is scaled. summary: only with a source that has a memory."""

    observation: normalize.RunningStatistics
    summary: normalize.RunningStatistics | None
    reward: normalize.RunningStatistics
    cost: normalize.RunningStatistics


@flax.struct.dataclass
class LearnerState:
    """One lane of a run, whole: save it, load it, and the run goes on as if nothing had happened.

    diverged: [] int32, the iteration in which something the lane had learned became non-finite; -1 while it is sound.
    From there on it learns nothing more.
    """

    key: jax.Array
    diverged: jax.Array
    agent: ppo.Agent
    multiplier: multipliers.LagrangeState
    normalizers: Normalizers
    window: episodes.EpisodeWindow
    source: Any
    runner: rollout.RunnerState


@dataclasses.dataclass(frozen=True)
class Spread:
    """A lane's environments over devices: each device runs its share, then all see everything.

    Attributes:
      axis: name of the mapped device axis; None when one device has all environments.
      shares: devices on it.
    """

    axis: str | None = None
    shares: int = 1

    def keys(self, key: jax.Array, count: int) -> jax.Array:
        """Keys of this device's share of `count` environments; the last shares are padded to equal length."""
        own = -(-count // self.shares)
        first = lax.axis_index(self.axis) * own if self.axis else 0
        return rollout.environment_keys(key, first, own)

    def gather(self, tree: Any) -> Any:
        """Joins leaves [T, share, ...] of all devices to [T, B, ...]."""
        if self.axis is None:
            return tree
        return jax.tree.map(lambda leaf: lax.all_gather(leaf, self.axis, axis=1, tiled=True), tree)


@dataclasses.dataclass(frozen=True)
class Learner:
    """The pure training step of one task.

    Attributes:
      task: the environment.
      source: where costs come from.
      modules: the networks.
      environments: how a lane's environments are spread over devices.
      one_lane_at_a_time: under vmap, update the lanes' policies one after the other instead of in one batch. On a
        CPU that is faster: each lane stops when its own policy has moved far enough.
      clock: tells the stages' times, which are in the rows if there is one.
    """

    task: Task
    source: sources.Source
    modules: ppo.Modules
    environments: Spread
    one_lane_at_a_time: bool
    clock: Clock | None

    def init(self, config: Config, key: jax.Array, prior: sources.Prior | None = None) -> LearnerState:
        """A fresh lane. key: the lane's identity; kept, never consumed. prior: what is known of the cost already."""
        observation_size, summary_size = self.task.observation_size, self.source.summary_size(config)
        count = config.environment.count
        known = prior.statistics if prior is not None else None
        return LearnerState(
            key=key,
            diverged=jnp.full((), -1, jnp.int32),
            agent=ppo.init(self.modules, stream(key, 0, Stream.INIT), observation_size, summary_size),
            multiplier=multipliers.init(config.lagrange.initial),
            normalizers=Normalizers(
                # The estimator reads what it was fitted to, scaled as it was then.
                observation=known if known is not None else normalize.init((observation_size,)),
                summary=normalize.init((summary_size,)) if summary_size else None,
                reward=normalize.init(()),
                cost=normalize.init(()),
            ),
            window=episodes.init(config.lagrange.window, ("returns", "costs")),
            source=self.source.init(config, stream(key, 0, Stream.ESTIMATOR), prior),
            runner=rollout.start(
                self.task,
                rollout.environment_keys(stream(key, 0, Stream.RESET), 0, count),
                self.source.memory(config, count),
            ),
        )

    def iteration(
        self, config: Config, state: LearnerState, index: jax.Array
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One iteration of one lane. index: [] the same for all lanes. Returns the new state and a row of scalars."""
        index, began = self._time(index)
        state, transitions, truth = self.collect(config, state, index)
        return self.learn(config, state, transitions, truth, index, began)

    def collect(
        self, config: Config, state: LearnerState, index: jax.Array | int
    ) -> tuple[LearnerState, rollout.Transitions, rollout.Truth]:
        """Runs the current policy in all environments."""
        settings = config.environment
        keys = functools.partial(self.environments.keys, count=settings.count)
        runner = state.runner
        if settings.reset_each_iteration:
            runner = self.start(config, keys(stream(state.key, index, Stream.RESET)))
        noise = rollout.noise(keys(stream(state.key, index, Stream.ACT)), settings.steps, self.task.action_size)
        runner, transitions, truth = rollout.run(
            self.task,
            self.player(config, state),
            runner,
            noise,
            keys(stream(state.key, index, Stream.RESET_LATER)),
        )
        return dataclasses.replace(state, runner=runner), *self.environments.gather((transitions, truth))

    def learn(
        self,
        config: Config,
        state: LearnerState,
        transitions: rollout.Transitions,
        truth: rollout.Truth,
        index: jax.Array,
        began: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Costs, multiplier, advantages, policy; then the statistics that the next iteration acts with.

        began: [] when the rollout began, as `clock` tells it.
        """
        cost, collected = self._time(truth.cost)
        truth = dataclasses.replace(truth, cost=cost)
        window = episodes.push(state.window, truth.ended, returns=truth.episode_return, costs=truth.episode_cost)
        window_means = episodes.means(window)
        source, verdict, source_row = self.source.judge(
            config,
            state.source,
            state.normalizers.observation,
            transitions,
            truth,
            window,
            jax.random.fold_in(state.key, index),
            index,
        )
        cost, judged = self._time(verdict.cost)
        multiplier = multipliers.update(
            state.multiplier,
            verdict.measure,
            verdict.limit,
            jnp.any(truth.ended),
            lr=config.lagrange.lr,
            maximum=config.lagrange.maximum,
        )
        weight = multipliers.in_force(
            multiplier.multiplier, verdict.measure, verdict.limit, proportional=config.lagrange.proportional
        )
        samples, normalizers = self._samples(config, state, transitions, cost, weight)
        progress = index / config.iterations if config.ppo.actor_lr_decay else 0.0
        actor_lr = config.ppo.actor_lr * (1.0 - progress)
        agent, update_scalars = self._update(
            state.agent, samples, stream(state.key, index, Stream.SHUFFLE), config.ppo, jnp.asarray(actor_lr)
        )
        _, updated = self._time(jax.tree.leaves(agent)[0])
        learned = (agent, multiplier, normalizers, self.source.learned(source))
        finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(learned)]))
        sound = finite & (state.diverged < 0)
        # Only what is learned goes back, which is small: the pool and the store are written in place.
        before = (state.agent, state.multiplier, state.normalizers, self.source.learned(state.source))
        agent, multiplier, normalizers, fitted = jax.tree.map(
            lambda new, old: jnp.where(sound, new, old), learned, before
        )
        row = {
            **episodes.summary(truth, self.accepted(config, truth.episode_cost, transitions.terminated)),
            "window/return": window_means["returns"],
            "window/cost": window_means["costs"],
            "constraint/measure": verdict.measure,
            "constraint/limit": verdict.limit,
            "constraint/gap": verdict.measure - verdict.limit,
            "constraint/multiplier": multiplier.multiplier,
            "constraint/in_force": weight,
            "ppo/actor_lr": jnp.asarray(actor_lr, jnp.float32),
            **update_scalars,
            **source_row,
            **self._stages(collect=(began, collected), judge=(collected, judged), update=(judged, updated)),
            "finite": sound.astype(jnp.float32),
        }
        return dataclasses.replace(
            state,
            diverged=jnp.where(sound | (state.diverged >= 0), state.diverged, index),
            agent=agent,
            multiplier=multiplier,
            normalizers=normalizers,
            window=window,
            source=self.source.with_learned(source, fitted),
        ), row

    def accepted(self, config: Config, total_cost: jax.Array, terminated: jax.Array) -> jax.Array:
        """Which episodes are acceptable, whatever the source of costs. See `labels.accepted`."""
        return labels.accepted(
            total_cost,
            terminated,
            limit=config.constraint.cost_limit,
            early_end_violates=config.labels.early_end == "violating",
        )

    def _time(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The time at which a value was there. What uses the value given back begins after that."""
        return self.clock(value) if self.clock is not None else (value, jnp.zeros((), jnp.uint32))

    def _stages(self, **times: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        """Seconds of stages, given when they began and ended; nothing without a clock."""
        if self.clock is None:
            return {}
        return {f"stage/{name}": (end - begin).astype(jnp.float32) * 1e-6 for name, (begin, end) in times.items()}

    def start(self, config: Config, keys: jax.Array) -> rollout.RunnerState:
        """Environments at random starts, one for each of keys [B], consumed."""
        return rollout.start(self.task, keys, self.source.memory(config, keys.shape[0]))

    def player(self, config: Config, state: LearnerState) -> rollout.Player:
        """The current policy; with zero noise it takes its mean action."""

        def remember(memory, observation, action):
            return self.source.remember(
                config, state.source, state.normalizers.observation, memory, observation, action
            )

        return rollout.Player(
            act=functools.partial(self.act, config, state), remember=remember, summarize=self.source.summarize
        )

    def act(
        self,
        config: Config,
        state: LearnerState,
        observation: jax.Array,
        summary: jax.Array | None,
        noise: jax.Array,
    ) -> jax.Array:
        """Actions [..., A] for raw observations [..., O], summaries [..., H] and standard normal noise [..., A]."""
        observed = self._observe(config, state.normalizers, observation)
        mean, log_std = self.modules.policy(
            state.agent.actor.params, self._context(state.normalizers, observed, summary)
        )
        return mean + jnp.exp(log_std) * noise

    def _context(self, normalizers: Normalizers, observed: jax.Array, summary: jax.Array | None) -> jax.Array:
        """What actor and cost critic read: the scaled observation and, if there is one, the scaled summary."""
        if summary is None or normalizers.summary is None:
            return observed
        return jnp.concatenate([observed, normalize.apply(normalizers.summary, summary)], axis=-1)

    def _observe(self, config: Config, normalizers: Normalizers, observation: jax.Array) -> jax.Array:
        if config.normalize.observations:
            return normalize.apply(normalizers.observation, observation)
        return observation

    def _samples(
        self,
        config: Config,
        state: LearnerState,
        transitions: rollout.Transitions,
        cost: jax.Array,
        multiplier: jax.Array,
    ) -> tuple[ppo.Samples, Normalizers]:
        """Advantages and targets of a rollout [T, B], flattened to samples [N]; and the updated statistics.

        Observations keep the statistics they were acted on with, so that the first policy ratio is 1. Rewards and
        costs, which no action has read, use the updated ones.
        """
        summary = state.normalizers.summary
        if summary is not None:
            assert transitions.summary is not None
            summary = normalize.update(summary, transitions.summary)
        normalizers = Normalizers(
            observation=normalize.update(state.normalizers.observation, transitions.observation),
            summary=summary,
            reward=normalize.update(state.normalizers.reward, transitions.reward),
            cost=normalize.update(state.normalizers.cost, cost),
        )
        reward = transitions.reward
        if config.normalize.rewards:
            reward = normalize.scale(normalizers.reward, reward)
        if config.normalize.costs == "always" or (config.normalize.costs == "learned" and self.source.learns):
            cost = normalize.scale(normalizers.cost, cost)
        observation = self._observe(config, state.normalizers, transitions.observation)
        next_observation = self._observe(config, state.normalizers, transitions.next_observation)
        context = self._context(state.normalizers, observation, transitions.summary)
        next_context = self._context(state.normalizers, next_observation, transitions.next_summary)
        estimate = functools.partial(
            advantages.gae, terminated=transitions.terminated, truncated=transitions.truncated, gamma=config.ppo.gamma
        )
        value_of = self.modules.value
        reward_advantage, reward_target = estimate(
            reward,
            value_of(state.agent.reward_critic.params, observation),
            value_of(state.agent.reward_critic.params, next_observation),
            decay=config.ppo.gae_lambda,
        )
        cost_advantage, cost_target = estimate(
            cost,
            value_of(state.agent.cost_critic.params, context),
            value_of(state.agent.cost_critic.params, next_context),
            decay=config.ppo.cost_gae_lambda,
        )
        advantage = multipliers.mix(
            advantages.standardize(reward_advantage), advantages.center(cost_advantage), multiplier
        )
        mean, log_std = self.modules.policy(state.agent.actor.params, context)
        samples = ppo.Samples(
            observation=observation,
            context=context,
            action=transitions.action,
            log_prob=distributions.log_prob(mean, log_std, transitions.action),
            advantage=advantage,
            reward_target=reward_target,
            cost_target=cost_target,
        )
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples), normalizers

    def _update(self, agent, samples, key, ppo_config, actor_lr):
        def update(agent, samples, key, ppo_config, actor_lr):
            return ppo.update(self.modules, agent, samples, key, ppo=ppo_config, actor_lr=actor_lr)

        if self.one_lane_at_a_time:
            update = jax.custom_batching.sequential_vmap(update)
        return update(agent, samples, key, ppo_config, actor_lr)


def make(
    config: Config, task: Task, *, environments: Spread, one_lane_at_a_time: bool, clock: Clock | None = None
) -> Learner:
    """The learner of a task."""
    return Learner(
        task=task,
        source=sources.make(config, task),
        modules=ppo.Modules(
            actor=GaussianActor(
                hidden=config.policy.hidden,
                actions=task.action_size,
                activation=config.policy.activation,
                mean=config.policy.mean,
                initial_log_std=config.policy.initial_log_std,
                min_std=config.policy.min_std,
            ),
            critic=Critic(hidden=config.critic.hidden, activation=config.critic.activation),
        ),
        environments=environments,
        one_lane_at_a_time=one_lane_at_a_time,
        clock=clock,
    )
