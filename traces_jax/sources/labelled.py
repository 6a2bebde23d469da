"""Base class of all sources that learn a cost from labels: pool, query selection, labels, store, counters.

A subclass scores trajectories, has a cost model that is fitted to labelled ones, and computes costs. The learner never
reads true costs. The simulated labels of every trajectory are computed when it enters the pool, but they are read only
for trajectories that are selected.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.config import Config
from traces_jax.core import episodes, normalize, optimize, spanning
from traces_jax.core.keys import Stream, substream
from traces_jax.estimator import refit
from traces_jax.feedback import labelers, labels, query, trajectories
from traces_jax.feedback.trajectories import Candidates, Cuts, Trajectories
from traces_jax.sources import candidates, correction, metrics
from traces_jax.sources.base import FLOAT, Answers, Collected, Credits, Part, Query, Source
from traces_jax.sources.candidates import Schedule
from traces_jax.sources.state import LabelledState, Score
from traces_jax.tasks import PhysicsTask

# Settings that the pool grows with.
ASKED = ("query.batch", "query.fraction", "environment.count", "environment.steps")
# Settings that decide what labels of prefixes mean.
PREFIX_LABELS = ("constraint.cost_limit", "labels.interval", "labels.terminal_only", "labels.early_end")


class Labelled(Source):
    """A source with a learned cost, for one task.

    Attributes:
      uncertainty_name: of its uncertainty in the metrics; empty if it has none.
      fitted_with: paths of the settings in which a saved cost model must agree with a run.
      noted: paths of those in which it may differ, but not without a note.
      rehearses: whether a query that found nothing worth a label is followed by a fit to what is stored.
    """

    learns = True
    uncertainty_name = ""
    fitted_with: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    rehearses = False

    @property
    def features(self) -> int:
        """Input features of a step: observation and action."""
        return self.task.observation_size + self.task.action_size

    # --- Implemented by subclasses.

    @abc.abstractmethod
    def fresh(self, config: Config, key: jax.Array) -> optimize.Trained:
        """A newly initialized cost model. key: consumed."""

    @abc.abstractmethod
    def prepare(self, config: Config, statistics: normalize.RunningStatistics, inputs: jax.Array) -> jax.Array:
        """The cost model's inputs [..., F] from raw ones [..., F], observation and action."""

    @abc.abstractmethod
    def model(self, config: Config, statistics: normalize.RunningStatistics) -> refit.Model:
        """The cost model's loss and its judgement of trajectories. statistics: of observations."""

    @abc.abstractmethod
    def score(
        self, config: Config, state: LabelledState, statistics: normalize.RunningStatistics, rows: Trajectories
    ) -> Score:
        """What it says of trajectories [N] that may be labelled."""

    @abc.abstractmethod
    def scores(self, config: Config, params: Any, inputs: jax.Array) -> dict[str, jax.Array]:
        """All that the cost model says of full trajectories, prepared inputs [T, B, F]; arrays [T, B, ...].

        Among them: mean, the expected cost of each step, and log_probability of being acceptable until then.
        """

    # --- May be overridden.

    @classmethod
    def published(cls, params: Any) -> dict[str, Any] | None:
        """Settings, path -> value, of a cost model as published by its authors; None if it is none of this source."""
        del params
        return None

    def fresh_for_data(self, config: Config, key: jax.Array) -> optimize.Trained:
        """A newly initialized cost model that will be fitted to much recorded data. key: consumed."""
        return self.fresh(config, key)

    def random_share(self, config: Config) -> float:
        """The share of picks that are drawn at random from all that are worth a label."""
        del config
        return 1.0

    def label(self, config: Config, cost: jax.Array, length: jax.Array, terminated: jax.Array) -> jax.Array:
        """What a labeler who knows the true cost [N, T] says, [N, P]; the last is of the whole trajectory.

        length: [N]; terminated: [N] whether the trajectory terminated early.
        """
        return labels.oracle(
            cost,
            length,
            terminated,
            limit=config.constraint.cost_limit,
            ends=self.ends(config),
            early_end_violates=config.labels.early_end == "violating",
        )

    def mask(self, config: Config, length: jax.Array) -> jax.Array:
        """Which labels trajectories of length [N] have, [N, P]."""
        return trajectories.prefix_mask(length, self.ends(config))

    def told(self, config: Config, first: jax.Array, length: jax.Array, known: jax.Array) -> Answers:
        """Labels of trajectories, from what somebody who saw them says.

        first: [N] the first violating step, -1 for none; length: [N]; known: [N] whether the step of a violation is
        known, or only that there is one.
        """
        said, there = labels.prefixes(first, length, self.ends(config)), self.mask(config, length)
        # The last prefix is the whole trajectory.
        return Answers(labels=said, mask=there.at[:, :-1].set(there[:, :-1] & known[:, None]))

    def asked(self, config: Config, rows: Trajectories) -> jax.Array:
        """How many single labels were given to label rows [N], []."""
        del config
        return jnp.sum(rows.mask)

    def no_notes(self, config: Config, key: jax.Array) -> Any:
        """The notes before anything is labelled. key: consumed."""
        del config, key
        return None

    def note(self, config: Config, notes: Any, rows: Trajectories) -> Any:
        """The notes after rows [N] were labelled."""
        del config, rows
        return notes

    def summed(self) -> tuple[str, ...]:
        """Names of what is summed over an episode that spans iterations."""
        return ()

    def correction(self, config: Config) -> int:
        """Number of labels of random picks that correct the measure; 0 where the measure is not a probability."""
        del config
        return 0

    # --- Settings.

    def schedule(self, config: Config) -> Schedule:
        """When labels are queried."""
        return candidates.schedule(config, self.task)

    def ends(self, config: Config) -> np.ndarray:
        """Lengths of the labelled prefixes, [P]; the last is that of the whole trajectory."""
        return trajectories.prefix_ends(self.task.horizon, config.labels.interval, config.labels.terminal_only)

    def check(self, config):
        candidates.check(config, self.task)

    def parts(self, config):
        plan, prefixes = self.schedule(config), len(self.ends(config))
        row = self.task.horizon * self.features * FLOAT + prefixes * (FLOAT + 1) + FLOAT
        watched = 0
        if labelers.kind(config.labels.by) != labelers.ORACLE and isinstance(self.task, PhysicsTask):
            watched = self.task.horizon * self.task.physics.mj_model.nq * FLOAT
        waiting = plan.pool * (row + 3 * FLOAT + watched)
        opened = candidates.open_bytes(config, self.task, self.features)
        judged = 2 * FLOAT * (config.lagrange.window + config.mean_window)
        return [
            Part("trajectories that wait for a query", waiting, ASKED, kept=True),
            Part("open episodes", opened, ("pool.tracked",), kept=True),
            Part("picked trajectories", plan.picks * row, ("query.batch", "environment.count")),
            Part("the store", config.refit.store * row, ("refit.store",), kept=True),
            Part("their last episodes", judged, ("lagrange.window",), kept=True),
        ]

    # --- State.

    def init(self, config, key, prior, watched):
        plan, sizes = self.schedule(config), (self.task.horizon, self.features, len(self.ends(config)))
        store = trajectories.empty(config.refit.store, *sizes)
        # A stream of its own: `fresh` consumes the key itself.
        notes = self.no_notes(config, substream(key, Stream.QUERY))
        if prior is not None and prior.rows is not None:
            store = trajectories.push(store, prior.rows)
            notes = self.note(config, notes, prior.rows)
        return LabelledState(
            fitted=self.fresh(config, key) if prior is None else prior.fitted,
            pool=trajectories.empty_pool(plan.pool, *sizes, watched),
            store=store,
            judged=episodes.init_windows(config.lagrange.window, config.mean_window, ("costs", "violations")),
            residuals=correction.no_residuals(),
            seen=jnp.zeros((), jnp.int32),
            due=jnp.zeros((), jnp.int32),
            # Labels from before the run are not counted, neither here nor against its budget.
            labelled=jnp.zeros((), jnp.int32),
            queries=jnp.zeros((), jnp.int32),
            notes=notes,
            open=spanning.init(
                config,
                self.task.horizon,
                self.features,
                memory=self.memory(config, config.environment.count),
                summed=self.summed(),
                watched=watched,
            ),
        )

    def resume(self, config, state, memory, environments):
        del config
        return memory if state.open is None or state.open.memory is None else state.open.memory[environments]

    def learned(self, state):
        return state.fitted

    def with_learned(self, state, learned):
        return dataclasses.replace(state, fitted=learned)

    # --- Labels.

    def pooled(
        self, config: Config, state: LabelledState, collected: Collected, inputs: jax.Array
    ) -> tuple[LabelledState, Trajectories, Cuts]:
        """Adds the episodes that ended in a rollout to the pool. inputs: [T, B, F] raw.

        Returns the state, the episodes, and their positions in the rollout.
        """
        opened, cuts, taken, origin = candidates.cut(config, self.task, state.open, collected, inputs)
        said = jnp.full((cuts.length.shape[0], len(self.ends(config))), jnp.nan)
        # Without the oracle the labels of a trajectory are unknown until somebody has seen it.
        if labelers.kind(config.labels.by) == labelers.ORACLE:
            said = self.label(config, taken.cost, cuts.length, cuts.last(collected.transitions.terminated))
        rows = Trajectories(
            inputs=taken.inputs,
            length=cuts.length,
            labels=said,
            mask=self.mask(config, cuts.length),
        )
        pool = trajectories.push(state.pool, Candidates(rows=rows, origin=origin, watched=taken.watched))
        # A share of all episodes is due, though only those of tracked environments can be labelled.
        seen = state.seen + jnp.sum(rows.valid if opened is None else collected.truth.ended)
        before, after = (jnp.maximum(ring.written - self.schedule(config).pool, 0) for ring in (state.pool, pool))
        cuts = dataclasses.replace(cuts, dropped=cuts.dropped + after - before)
        return dataclasses.replace(state, pool=pool, seen=seen, open=opened), rows, cuts

    def asks(self, config, iteration):
        period = self.schedule(config).period
        return True if period == 1 else (iteration + 1) % period == 0

    def ask(self, config, state, collected, key):
        plan, pool = self.schedule(config), state.pool.rows
        score = self.score(config, state, collected.statistics, pool.rows)
        uncertainty, eligible = score.uncertainty, pool.valid & score.worth
        due = jnp.minimum(query.due(config.query.fraction, state.seen), state.due + plan.picks)
        budget = config.query.budget if config.query.budget else np.iinfo(np.int32).max
        allowed = jnp.minimum(due - state.due, budget - state.labelled)
        certain = allowed - self._random_picks(config, state.due, due)
        rank = query.mixed(
            jnp.where(eligible, uncertainty, -jnp.inf),
            correction.chance(
                substream(key, Stream.QUERY),
                pool.origin.environment < config.mean_environments,
                share=config.mean_environments / config.environment.count if self.correction(config) else 0.0,
            ),
            certain,
        )
        picked, chosen = query.pick(pool, rank, plan.picks, allowed)
        return Query(
            rows=picked.rows,
            origin=picked.origin,
            watched=picked.watched,
            expected=score.expected[chosen],
            random=(jnp.arange(plan.picks) >= certain) & picked.valid,
            due=due,
            row={
                "query/accepted_pool": metrics.accepted(pool.rows),
                **metrics.uncertainty(self.uncertainty_name, uncertainty, pool.valid, chosen, picked.valid),
            },
        )

    def answers_inside(self, config):
        return labelers.kind(config.labels.by) == labelers.ORACLE

    def answer(self, config, query, key):
        if labelers.kind(config.labels.by) == labelers.FUNCTION:
            rows = query.rows
            shown = labelers.shown(rows.inputs, rows.length, query.watched, self.task.observation_size)
            first = labelers.judged(config.labels.by, shown)
            answers = self.told(config, first, rows.length, known=jnp.ones(first.shape, bool))
            return Answers(labels=jnp.where(rows.mask, answers.labels, 0.0), mask=answers.mask & rows.mask)
        said = labels.flip(query.rows.labels, substream(key, Stream.LABEL), config.labels.noise)
        return Answers(labels=said, mask=query.rows.mask)

    def absorb(self, config, state, collected, query, answers, key):
        # A trajectory that nobody could judge is neither kept nor counted.
        length = jnp.where(jnp.any(answers.mask, axis=1), query.rows.length, 0)
        new = dataclasses.replace(query.rows, length=length, labels=answers.labels, mask=answers.mask)
        fitted, after, passes = refit.refit(
            state.fitted,
            new,
            query.expected,
            state.store,
            substream(key, Stream.REFIT),
            refit=config.refit,
            model=self.model(config, collected.statistics),
            rehearses=self.rehearses,
        )
        # Adds zero, but makes the write depend on the refit, which reads the store. Otherwise XLA would write to a copy
        # of the store, tens of megabytes.
        written = state.store.written + jnp.minimum(passes, 0)
        row = {
            **metrics.fit(query.expected, new, "before"),
            **metrics.fit(after, new, "after"),
            "refit/passes": passes.astype(jnp.float32),
            "query/accepted_picked": metrics.accepted(new),
            **query.row,
        }
        residuals = new.labels[:, -1] - jnp.exp(query.expected[:, -1])
        known = query.random & new.mask[:, -1] & (self.correction(config) > 0)
        return dataclasses.replace(
            state,
            fitted=fitted,
            residuals=correction.add_residuals(
                state.residuals,
                residuals,
                known,
                query.origin.environment < config.mean_environments,
                memory=max(self.correction(config), 1),
            ),
            pool=trajectories.clear(state.pool),
            store=trajectories.push(dataclasses.replace(state.store, written=written), new),
            due=query.due,
            labelled=state.labelled + jnp.sum(new.valid),
            queries=state.queries + self.asked(config, new),
            notes=self.note(config, state.notes, new),
        ), row

    def violations(self, config: Config, judged: episodes.PolicyWindows) -> jax.Array:
        """The estimated share [] of violating episodes, of the policy that must satisfy the constraint."""
        noisy, mean = episodes.both(judged, "violations")
        return episodes.worse(noisy, mean, policy=config.constraint.policy)

    def credits(self, config, state, statistics, observation, action):
        said = self.scores(config, state.fitted.params, self.inputs(config, statistics, observation, action))
        return Credits(credit=said["mean"], log_probability=said["log_probability"])

    def inputs(
        self, config: Config, statistics: normalize.RunningStatistics, observation: jax.Array, action: jax.Array
    ) -> jax.Array:
        """The cost model's inputs [..., F]. observation: [..., O] raw; action: [..., A]."""
        return self.prepare(config, statistics, jnp.concatenate([observation, action], axis=-1))

    def counters(self, state: LabelledState, cuts: Cuts) -> dict[str, jax.Array]:
        """Scalars: labels so far, and episodes dropped because the pool was full."""
        return {
            "labels/trajectories": state.labelled.astype(jnp.float32),
            "labels/queries": state.queries.astype(jnp.float32),
            "pool/dropped": cuts.dropped.astype(jnp.float32),
        }

    def _random_picks(self, config: Config, before: jax.Array, due: jax.Array) -> jax.Array:
        """How many of the trajectories that became due between two queries are drawn at random, [].

        A query may be a single trajectory, so the share is tracked over all queries: after each one, the number of
        random picks is within half a pick of query.random_share of the total.
        """
        return query.newly_due(self.random_share(config), before, due)
