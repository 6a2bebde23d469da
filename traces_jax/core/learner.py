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
from traces_jax.core import agent, episodes, labelling, rollout, spanning
from traces_jax.core import batch as batch_lib
from traces_jax.core import kept as kept_lib
from traces_jax.core.batch import Normalizers
from traces_jax.core.keys import Stream, stream
from traces_jax.core.spread import Spread
from traces_jax.feedback import labels

# Reads the time once an array has been computed. Returns the array and the time in microseconds (uint32 [], may wrap).
# Later stages must use the returned array, so that they start after the reading.
Clock = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


@flax.struct.dataclass
class LearnerState:
    """The full state of one lane. A run resumed from it continues exactly as if it had not been interrupted.

    diverged: [] int32, the iteration in which a learned value of this lane became non-finite, or -1. From that
    iteration on, the lane is no longer updated. kept: the policy to deploy; None if that is the last one.
    """

    key: jax.Array
    diverged: jax.Array
    solver: Any
    normalizers: Normalizers
    windows: episodes.PolicyWindows
    source: Any
    runner: rollout.RunnerState
    kept: kept_lib.Kept | None

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
        if config.spans:
            runner = spanning.stagger(runner, spanning.elapsed(config, self.task.horizon))
        state = LearnerState(
            key=key,
            diverged=jnp.full((), -1, jnp.int32),
            solver=self.solver.init(
                config,
                stream(key, 0, Stream.INIT),
                observation_size + carried_size,
                observation_size + summary_size + carried_size,
            ),
            # A pretrained estimator needs its inputs normalized as they were when it was fitted.
            normalizers=batch_lib.init(observation_size, summary_size, known),
            windows=episodes.init_windows(config.lagrange.window, config.mean_window, ("returns", "costs")),
            source=self.source.init(
                config, stream(key, 0, Stream.ESTIMATOR), prior, rollout.watched_shape(self.watch, runner)
            ),
            runner=runner,
            kept=None,
        )
        return dataclasses.replace(state, kept=kept_lib.init(self.policy(state))) if config.constraint.keep else state

    def policy(self, state: LearnerState) -> kept_lib.Policy:
        """The policy of a state."""
        return kept_lib.Policy(state.agent.actor.params, state.normalizers, self.source.learned(state.source))

    def deployed(self, state: LearnerState) -> LearnerState:
        """The state with the policy to deploy. Also works on the states of many lanes."""
        return state if state.kept is None else self.with_policy(state, state.kept.policy)

    def with_policy(self, state: LearnerState, policy: kept_lib.Policy) -> LearnerState:
        """The state with another policy. Also works on the states of many lanes."""
        actor = dataclasses.replace(state.agent.actor, params=policy.actor)
        return dataclasses.replace(
            state,
            solver=dataclasses.replace(state.solver, agent=dataclasses.replace(state.agent, actor=actor)),
            normalizers=policy.normalizers,
            source=self.source.with_learned(state.source, policy.learned),
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
        own = self.environments.indices(settings.count)
        if settings.reset_each_iteration:
            runner = self.start(config, keys(stream(state.key, index, Stream.RESET)))
        else:
            memory = self.source.resume(config, state.source, state.runner.memory.source, own)
            held = dataclasses.replace(state.runner.memory, source=memory)
            runner = dataclasses.replace(state.runner, memory=held)
        noise = rollout.noise(keys(stream(state.key, index, Stream.ACT)), settings.steps, self.task.action_size)
        noise = jnp.where((own < config.mean_environments)[:, None], 0.0, noise)
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
        collected, source, reading = self.observe(config, state, transitions, truth, index)
        key = jax.random.fold_in(state.key, index)
        source, query_row = labelling.in_program(self.source, config, source, collected, key)
        return self.conclude(config, state, collected, source, reading, query_row, (began, ended), index)

    def observe(
        self,
        config: Config,
        state: LearnerState,
        transitions: rollout.Transitions,
        truth: rollout.Truth,
        index: jax.Array,
    ) -> tuple[sources.Collected, Any, Any]:
        """Shows a rollout to the source. Returns it with its context, and the source's state and reading."""
        memory = self.memory_after(config, state)
        return labelling.observe(self.source, config, state, transitions, truth, index, memory)

    def conclude(
        self,
        config: Config,
        state: LearnerState,
        collected: sources.Collected,
        source: Any,
        reading: Any,
        query_row: dict[str, jax.Array],
        times: tuple[jax.Array, jax.Array],
        index: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Computes costs and advantages, updates the policy, then the statistics used from the next iteration on.

        source: the source's state after labels were absorbed; times: begin and end of the rollout; index: [] of the
        iteration, equal for all lanes, so that conditions are not batched.
        """
        transitions, truth, plays_mean = collected.transitions, collected.truth, collected.plays_mean
        window_means = episodes.means(collected.windows.deployed(config.constraint.policy))
        key = jax.random.fold_in(state.key, index)
        asked = self.source.asks(config, index)
        source, verdict, source_row = self.source.verdict(config, source, collected, reading, asked, key)
        cost, judged = self.time(verdict.cost)
        # Episodes of the mean action are not samples of the policy that is updated.
        explored, cost = jax.tree.map(lambda leaf: leaf[:, config.mean_environments :], (transitions, cost))
        batch, normalizers, batch_row = batch_lib.make(
            config,
            self.solver,
            state.agent,
            state.normalizers,
            explored,
            cost,
            tolerance=verdict.tolerance,
            learned=self.source.learns,
        )
        progress = jnp.asarray(index / config.iterations, jnp.float32)
        solver, solver_row = self.solver.lane_by_lane(self.solver.update)(
            config,
            state.solver,
            batch,
            verdict,
            stream(state.key, index, Stream.SHUFFLE),
            progress,
        )
        most = agent.most_noise(config.policy.initial_log_std, config.policy.final_noise, progress)
        solver = dataclasses.replace(solver, agent=agent.bound_noise(solver.agent, most))
        _, updated = self.time(jax.tree.leaves(solver)[0])
        learned = (solver, normalizers, self.source.learned(source))
        finite = jnp.all(jnp.asarray([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(learned)]))
        sound = finite & (state.diverged < 0)
        # On divergence only learned values are reverted. They are small; the pool and the store are updated in place.
        before = (state.solver, state.normalizers, self.source.learned(state.source))
        solver, normalizers, fitted = jax.tree.map(lambda new, old: jnp.where(sound, new, old), learned, before)
        gap = kept_lib.gap(verdict.deployed, verdict.final, verdict.tolerance)
        accepted = self.accepted(config, truth.episode_cost, transitions.terminated)
        row = {
            **episodes.summary(truth, accepted, plays_mean),
            "window/return": window_means["returns"],
            "window/cost": window_means["costs"],
            "constraint/measure": verdict.measure,
            "constraint/limit": verdict.limit,
            "constraint/final": verdict.final,
            "constraint/gap": verdict.measure - verdict.limit,
            "constraint/deployed": verdict.deployed,
            **batch_row,
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
            windows=collected.windows,
            source=self.source.with_learned(source, fitted),
            kept=None
            if state.kept is None
            else kept_lib.update(state.kept, self.policy(state), index, gap, verdict.fresh),
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

    def memory_after(self, config: Config, state: LearnerState) -> jax.Array | None:
        """The source's memory of all environments after a rollout, if episodes span iterations."""
        if not config.spans:
            return None
        return jax.tree.map(
            lambda leaf: leaf[0],
            self.environments.gather(jax.tree.map(lambda leaf: leaf[None], state.runner.memory.source)),
        )

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
            budget = self.source.budget(config, state.source) if self.source.sums(config) else None
            return rollout.Memory(source=after, solver=self.solver.carry(config, memory.solver, cost, budget))

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
        observed = batch_lib.observe(config, state.normalizers, observation)
        mean, log_std = self.solver.modules.policy(
            state.agent.actor.params, batch_lib.context(state.normalizers, observed, summary, carried)
        )
        return mean + jnp.exp(log_std) * noise


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
