"""The training loop body: the order in which one iteration calls the other modules.

One iteration: collect -> observe -> ask, answer, absorb -> verdict -> advantages -> policy update -> row. The cost
source (`sources`) implements the steps before the advantages: the oracle reads the true cost, TraCeS learns one from
labels. The solver (`solvers`) implements the policy update.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax import solvers, sources, tasks
from traces_jax.config import Config
from traces_jax.core import agent, distributions, episodes, labelling, normalize, rollout
from traces_jax.core.keys import Stream, stream
from traces_jax.core.spread import Spread
from traces_jax.feedback import labels
from traces_jax.solvers import advantages

# Reads the time once an array has been computed. Returns the array and the time in microseconds (uint32 [], may wrap).
# Later stages must use the returned array, so that they start after the reading.
Clock = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


@flax.struct.dataclass
class Normalizers:
    """Running statistics of everything that is normalized. summary: only for sources with a recurrent memory."""

    observation: normalize.RunningStatistics
    summary: normalize.RunningStatistics | None
    reward: normalize.RunningStatistics
    cost: normalize.RunningStatistics


@flax.struct.dataclass
class LearnerState:
    """The full state of one lane. A run resumed from it continues exactly as if it had not been interrupted.

    diverged: [] int32, the iteration in which a learned value of this lane became non-finite, or -1. From that
    iteration on, the lane is no longer updated.
    """

    key: jax.Array
    diverged: jax.Array
    solver: Any
    normalizers: Normalizers
    window: episodes.EpisodeWindow
    source: Any
    runner: rollout.RunnerState

    @property
    def agent(self) -> agent.Agent:
        """The networks trained by the solver."""
        return self.solver.agent


@dataclasses.dataclass(frozen=True)
class Learner:
    """The pure training step of one task.

    Attributes:
      task: the environment.
      source: where costs come from.
      solver: how the policy is updated.
      environments: how a lane's environments are spread over devices.
      clock: measures the time of each stage, for the metrics row. None: no times.
      watch: extracts what to store of each state of a trajectory that may be labelled, such as positions for drawing.
    """

    task: tasks.Task
    source: sources.Source
    solver: solvers.Solver
    environments: Spread
    clock: Clock | None
    watch: Callable[[tasks.State], Any] | None = None

    def init(self, config: Config, key: jax.Array, prior: sources.Prior | None = None) -> LearnerState:
        """A new lane. key: the lane's base key; stored, never consumed. prior: existing knowledge of the cost."""
        observation_size, summary_size = self.task.observation_size, self.source.summary_size(config)
        carried_size = self.solver.carried_size(config)
        known = prior.statistics if prior is not None else None
        starts = rollout.environment_keys(stream(key, 0, Stream.RESET), 0, config.environment.count)
        runner = self.start(config, starts)
        return LearnerState(
            key=key,
            diverged=jnp.full((), -1, jnp.int32),
            solver=self.solver.init(
                config,
                stream(key, 0, Stream.INIT),
                observation_size + carried_size,
                observation_size + summary_size + carried_size,
            ),
            normalizers=Normalizers(
                # A pretrained estimator needs its inputs normalized as they were when it was fitted.
                observation=known if known is not None else normalize.init((observation_size,)),
                summary=normalize.init((summary_size,)) if summary_size else None,
                reward=normalize.init(()),
                cost=normalize.init(()),
            ),
            window=episodes.init(config.lagrange.window, ("returns", "costs")),
            source=self.source.init(
                config, stream(key, 0, Stream.ESTIMATOR), prior, rollout.watched_shape(self.watch, runner)
            ),
            runner=runner,
        )

    def iteration(
        self, config: Config, state: LearnerState, index: jax.Array
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One iteration of one lane. index: [], equal for all lanes. Returns the new state and a row of scalars."""
        index, began = self.time(index)
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
            self.watch or (lambda _: None),
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
        """Labels, if a program does it, and learns. began: [] start of the rollout, as read by `clock`."""
        cost, ended = self.time(truth.cost)
        truth = dataclasses.replace(truth, cost=cost)
        collected, source, reading = labelling.observe(self.source, config, state, transitions, truth, index)
        key = jax.random.fold_in(state.key, index)
        source, query_row = labelling.in_program(self.source, config, source, collected, key)
        return self.conclude(config, state, collected, source, reading, query_row, (began, ended))

    def conclude(
        self,
        config: Config,
        state: LearnerState,
        collected: sources.Collected,
        source: Any,
        reading: Any,
        query_row: dict[str, jax.Array],
        times: tuple[jax.Array, jax.Array],
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Computes costs and advantages, updates the policy, then the statistics used from the next iteration on.

        source: the source's state after labels were absorbed; times: begin and end of the rollout.
        """
        transitions, truth, index = collected.transitions, collected.truth, collected.iteration
        window_means = episodes.means(collected.window)
        key = jax.random.fold_in(state.key, index)
        asked = self.source.asks(config, collected.iteration)
        source, verdict, source_row = self.source.verdict(config, source, collected, reading, asked, key)
        cost, judged = self.time(verdict.cost)
        batch, normalizers = self._batch(config, state, transitions, cost)
        solver, solver_row = self.solver.update(
            config,
            state.solver,
            batch,
            verdict,
            stream(state.key, index, Stream.SHUFFLE),
            index / config.iterations,
        )
        _, updated = self.time(jax.tree.leaves(solver)[0])
        learned = (solver, normalizers, self.source.learned(source))
        finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(learned)]))
        sound = finite & (state.diverged < 0)
        # On divergence only learned values are reverted. They are small; the pool and the store are updated in place.
        before = (state.solver, state.normalizers, self.source.learned(state.source))
        solver, normalizers, fitted = jax.tree.map(lambda new, old: jnp.where(sound, new, old), learned, before)
        row = {
            **episodes.summary(truth, self.accepted(config, truth.episode_cost, transitions.terminated)),
            "window/return": window_means["returns"],
            "window/cost": window_means["costs"],
            "constraint/measure": verdict.measure,
            "constraint/limit": verdict.limit,
            "constraint/gap": verdict.measure - verdict.limit,
            **solver_row,
            **source_row,
            **query_row,
            **self._stages(collect=times, judge=(times[1], judged), update=(judged, updated)),
            "finite": sound.astype(jnp.float32),
        }
        return dataclasses.replace(
            state,
            diverged=jnp.where(sound | (state.diverged >= 0), state.diverged, index),
            solver=solver,
            normalizers=normalizers,
            window=collected.window,
            source=self.source.with_learned(source, fitted),
        ), labelling.told(self.source, config, row)

    def accepted(self, config: Config, total_cost: jax.Array, terminated: jax.Array) -> jax.Array:
        """Which episodes are truly acceptable, for any cost source. See `labels.accepted`."""
        return labels.accepted(
            total_cost,
            terminated,
            limit=config.constraint.cost_limit,
            early_end_violates=config.labels.early_end == "violating",
        )

    def time(self, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The time at which a value was computed. Code that uses the returned value starts after the reading."""
        return self.clock(value) if self.clock is not None else (value, jnp.zeros((), jnp.uint32))

    def _stages(self, **times: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        """Seconds of each stage, from its (begin, end) times. Empty without a clock."""
        if self.clock is None:
            return {}
        return {f"stage/{name}": (end - begin).astype(jnp.float32) * 1e-6 for name, (begin, end) in times.items()}

    def start(self, config: Config, keys: jax.Array) -> rollout.RunnerState:
        """Environments in random initial states, one for each of keys [B], which are consumed."""
        return rollout.start(self.task, keys, self._memory(config, keys.shape[0]))

    def _memory(self, config: Config, count: int) -> rollout.Memory:
        """The memory at the start of an episode, for `count` environments."""
        return rollout.Memory(source=self.source.memory(config, count), solver=self.solver.begin(config, count))

    def player(self, config: Config, state: LearnerState) -> rollout.Player:
        """The current policy. With zero noise it takes its mean action."""
        statistics = state.normalizers.observation

        def act(observation, summary, carried, noise):
            return self.act(config, state, observation, summary, noise, carried)

        def remember(memory, observation, action, true_cost):
            after = self.source.remember(config, state.source, statistics, memory.source, observation, action)
            if memory.solver is None:
                return rollout.Memory(source=after)
            cost = self.source.step_cost(
                config, state.source, statistics, memory.source, after, observation, action, true_cost
            )
            return rollout.Memory(source=after, solver=self.solver.carry(config, memory.solver, cost))

        return rollout.Player(
            act=act,
            begin=functools.partial(self._memory, config),
            remember=remember,
            summarize=self.source.summarize,
        )

    def act(
        self,
        config: Config,
        state: LearnerState,
        observation: jax.Array,
        summary: jax.Array | None,
        noise: jax.Array,
        carried: jax.Array | None = None,
    ) -> jax.Array:
        """Actions [..., A] for raw observations [..., O] and standard normal noise [..., A].

        summary: [..., H] from the source's memory; carried: [..., K] from the solver.
        """
        observed = self._observe(config, state.normalizers, observation)
        mean, log_std = self.solver.modules.policy(
            state.agent.actor.params, self._context(state.normalizers, observed, summary, carried)
        )
        return mean + jnp.exp(log_std) * noise

    def _context(
        self,
        normalizers: Normalizers,
        observed: jax.Array,
        summary: jax.Array | None,
        carried: jax.Array | None,
    ) -> jax.Array:
        """Input of actor and cost critic: normalized observation, normalized summary and values the solver carries."""
        parts = [observed]
        if summary is not None and normalizers.summary is not None:
            parts.append(normalize.apply(normalizers.summary, summary))
        if carried is not None:
            parts.append(carried)
        return jnp.concatenate(parts, axis=-1) if len(parts) > 1 else observed

    def _observe(self, config: Config, normalizers: Normalizers, observation: jax.Array) -> jax.Array:
        if config.normalize.observations:
            return normalize.apply(normalizers.observation, observation)
        return observation

    def _batch(
        self, config: Config, state: LearnerState, transitions: rollout.Transitions, cost: jax.Array
    ) -> tuple[solvers.Batch, Normalizers]:
        """A rollout with its advantages and targets, and the updated statistics. cost: [T, B].

        Observations are normalized with the statistics used during the rollout, so that the first policy ratio is 1.
        Rewards and costs are not policy inputs, so they use the updated statistics.
        """
        summary = state.normalizers.summary
        if summary is not None:
            assert transitions.summary is not None
            summary = normalize.update(summary, transitions.summary)
        reward = self.solver.shape_reward(config, transitions.reward, transitions.next_carried)
        normalizers = Normalizers(
            observation=normalize.update(state.normalizers.observation, transitions.observation),
            summary=summary,
            reward=normalize.update(state.normalizers.reward, reward),
            cost=normalize.update(state.normalizers.cost, cost),
        )
        if config.normalize.rewards:
            reward = normalize.scale(normalizers.reward, reward)
        if config.normalize.costs == "always" or (config.normalize.costs == "learned" and self.source.learns):
            cost = normalize.scale(normalizers.cost, cost)
        observed = self._observe(config, state.normalizers, transitions.observation)
        next_observed = self._observe(config, state.normalizers, transitions.next_observation)
        read = functools.partial(self._context, state.normalizers)
        observation = read(observed, None, transitions.carried)
        next_observation = read(next_observed, None, transitions.next_carried)
        context = read(observed, transitions.summary, transitions.carried)
        next_context = read(next_observed, transitions.next_summary, transitions.next_carried)
        estimate = functools.partial(
            advantages.gae, terminated=transitions.terminated, truncated=transitions.truncated, gamma=config.ppo.gamma
        )
        modules, networks = self.solver.modules, state.agent
        reward_advantage, reward_target = estimate(
            reward,
            modules.value(networks.reward_critic.params, observation),
            modules.value(networks.reward_critic.params, next_observation),
            decay=config.ppo.gae_lambda,
        )
        cost_advantage, cost_target = estimate(
            cost,
            modules.value(networks.cost_critic.params, context),
            modules.value(networks.cost_critic.params, next_context),
            decay=config.ppo.cost_gae_lambda,
        )
        mean, log_std = modules.policy(networks.actor.params, context)
        return solvers.Batch(
            observation=observation,
            context=context,
            action=transitions.action,
            log_prob=distributions.log_prob(mean, log_std, transitions.action),
            mean=mean,
            log_std=log_std,
            reward_advantage=reward_advantage,
            cost_advantage=cost_advantage,
            reward_target=reward_target,
            cost_target=cost_target,
        ), normalizers


def make(
    config: Config,
    task: tasks.Task,
    *,
    environments: Spread,
    one_lane_at_a_time: bool,
    clock: Clock | None = None,
    watch: Callable[[tasks.State], Any] | None = None,
) -> Learner:
    """The learner for a task."""
    return Learner(
        task=task,
        source=sources.make(config, task),
        solver=solvers.make(config, task, one_lane_at_a_time=one_lane_at_a_time),
        environments=environments,
        clock=clock,
        watch=watch,
    )
