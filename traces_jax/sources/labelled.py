"""Base class of all sources that learn a cost from labels: pool, query selection, labels, store, counters.

A subclass scores trajectories, fits its cost model to labelled ones, and computes costs. The learner never reads true
costs. The simulated labels of every trajectory are computed when it enters the pool, but they are read only for
trajectories that are selected.
"""

import abc
import dataclasses
import fractions
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.config import Config, ConfigError
from traces_jax.core import episodes, normalize, optimize
from traces_jax.core.keys import Stream, substream
from traces_jax.estimator import credit
from traces_jax.feedback import labelers, labels, query, trajectories
from traces_jax.feedback.trajectories import Candidates, Cuts, Origin, Ring, Trajectories
from traces_jax.sources.base import FLOAT, Answers, Collected, Part, Query, Source
from traces_jax.tasks import PhysicsTask

# Settings that the pool grows with.
ASKED = ("query.batch", "query.fraction", "environment.count", "environment.steps")

# With this many labels of random picks, half of their mean residual is believed.
_FEW = 16.0


@flax.struct.dataclass
class LabelledState:
    """The state of a cost model and its labels.

    Attributes:
      fitted: the cost model and its optimizer state.
      pool: trajectories since the last query, with simulated labels that are not read yet.
      store: labelled trajectories.
      judged: estimated summed costs of the last finished episodes, and their probabilities of violation.
      residuals: labels minus estimated probabilities of the last trajectories that were labelled at random.
      seen: [] trajectories that were ever in the pool.
      due: [] how many of them were due for labelling by the last query. Fewer are labelled if their score was too low
        or the budget is spent.
      labelled: [] trajectories labelled so far.
      queries: [] single (prefix) labels so far.
    """

    fitted: optimize.Trained
    pool: Ring[Candidates]
    store: Ring[Trajectories]
    judged: episodes.PolicyWindows
    residuals: episodes.EpisodeWindow
    seen: jax.Array
    due: jax.Array
    labelled: jax.Array
    queries: jax.Array


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When labels are queried; the same for all lanes.

    Attributes:
      places: maximum number of episodes taken from an iteration.
      period: iterations between queries.
      picks: maximum number of trajectories in a query.
    """

    places: int
    period: int
    picks: int


class Labelled(Source):
    """A source with a learned cost, for one task."""

    learns = True

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
    def score(
        self, config: Config, fitted: optimize.Trained, statistics: normalize.RunningStatistics, rows: Trajectories
    ) -> tuple[jax.Array, jax.Array]:
        """The cost model's uncertainty of each trajectory, [N], and the log-probabilities of prefixes, [N, P]."""

    @abc.abstractmethod
    def fit(
        self,
        config: Config,
        fitted: optimize.Trained,
        statistics: normalize.RunningStatistics,
        new: Trajectories,
        expected: jax.Array,
        store: Ring[Trajectories],
        key: jax.Array,
    ) -> tuple[optimize.Trained, jax.Array, jax.Array]:
        """Fits to new rows [K] and the store. expected: [K, P] the new rows' log-probabilities before; key: consumed.

        Returns the fitted model, the log-probabilities of the new rows' prefixes [K, P], and the number of passes [].
        """

    # --- Settings.

    def schedule(self, config: Config) -> Schedule:
        """The schedule that follows from query.fraction and query.batch."""
        count = config.environment.count * (config.environment.steps // self.task.horizon)
        # The decimal value as written: 0.29 of 100 must be 29, but the float nearest to 0.29 is smaller.
        share = fractions.Fraction(str(config.query.fraction))
        period = math.ceil(config.query.batch / (share * count))
        # If episodes can end early, an iteration may have more of them. Those beyond twice the usual number are dropped
        # and counted.
        places = 2 * count if self.task.ends_early else count
        return Schedule(places=places, period=period, picks=math.ceil(share * places * period))

    def ends(self, config: Config) -> np.ndarray:
        """Lengths of the labelled prefixes, [P]."""
        return trajectories.prefix_ends(self.task.horizon, config.labels.interval, config.labels.terminal_only)

    def check(self, config: Config) -> None:
        if labelers.kind(config.labels.by) == labelers.ORACLE and not self.task.has_cost:
            raise ConfigError(
                f"labels.by={config.labels.by} is not right: {self.task.name} has no cost; people, a file of labels "
                f"or module:function would be right."
            )
        settings = config.environment
        if not settings.reset_each_iteration or settings.steps % self.task.horizon:
            # A rollout must consist of full trajectories.
            raise ConfigError(
                f"environment.steps={settings.steps}, reset_each_iteration={settings.reset_each_iteration} is not "
                f"right: labels are for whole episodes; a multiple of {self.task.horizon} steps, and true, would be "
                f"right."
            )
        picks = self.schedule(config).picks
        if config.refit.store < picks:
            # All trajectories of a query are stored together and must not overwrite each other.
            raise ConfigError(
                f"refit.store={config.refit.store} is not right: a query labels up to {picks} trajectories at once "
                f"(query.batch={config.query.batch}, query.fraction={config.query.fraction}), which must fit in; "
                f"{picks} or more would be right."
            )

    def parts(self, config):
        schedule, prefixes = self.schedule(config), len(self.ends(config))
        row = self.task.horizon * self.features * FLOAT + prefixes * (FLOAT + 1) + FLOAT
        of_origin, watched = 3 * FLOAT, 0
        if labelers.kind(config.labels.by) != labelers.ORACLE and isinstance(self.task, PhysicsTask):
            watched = self.task.horizon * self.task.physics.mj_model.nq * FLOAT
        return [
            Part(
                "trajectories that wait for a query",
                schedule.places * schedule.period * (row + of_origin + watched),
                ASKED,
                kept=True,
            ),
            Part("picked trajectories", schedule.picks * row, ("query.batch", "environment.count")),
            Part("the store", config.refit.store * row, ("refit.store",), kept=True),
            Part(
                "their last episodes",
                2 * FLOAT * (config.lagrange.window + config.mean_window),
                ("lagrange.window",),
                kept=True,
            ),
            Part("labels of random picks", FLOAT * config.constraint.correction, ("constraint.correction",), kept=True),
        ]

    # --- State.

    def init(self, config, key, prior, watched):
        schedule, sizes = self.schedule(config), (self.task.horizon, self.features, len(self.ends(config)))
        store = trajectories.empty(config.refit.store, *sizes)
        if prior is not None and prior.rows is not None:
            store = trajectories.push(store, prior.rows)
        return LabelledState(
            fitted=self.fresh(config, key) if prior is None else prior.fitted,
            pool=trajectories.empty_pool(schedule.places * schedule.period, *sizes, watched),
            store=store,
            judged=episodes.init_windows(config.lagrange.window, config.mean_window, ("costs", "violations")),
            residuals=episodes.init(max(config.constraint.correction, 1), ("residuals",)),
            seen=jnp.zeros((), jnp.int32),
            due=jnp.zeros((), jnp.int32),
            # Labels from before the run are not counted, neither here nor against its budget.
            labelled=jnp.zeros((), jnp.int32),
            queries=jnp.zeros((), jnp.int32),
        )

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
        ends, horizon = self.ends(config), self.task.horizon
        transitions, truth = collected.transitions, collected.truth
        cuts = trajectories.find(truth.ended, truth.episode_length, self.schedule(config).places)
        # Without the oracle the labels of a trajectory are unknown until somebody has seen it.
        answers = jnp.full((cuts.length.shape[0], len(ends)), jnp.nan)
        if labelers.kind(config.labels.by) == labelers.ORACLE:
            answers = labels.oracle(
                cuts.take(truth.cost, horizon),
                cuts.length,
                cuts.last(transitions.terminated),
                limit=config.constraint.cost_limit,
                ends=ends,
                early_end_violates=config.labels.early_end == "violating",
            )
        rows = Trajectories(
            inputs=cuts.take(inputs, horizon),
            length=cuts.length,
            labels=answers,
            mask=trajectories.prefix_mask(cuts.length, ends),
        )
        origin = Origin(
            iteration=jnp.full(cuts.first.shape, collected.iteration),
            environment=cuts.environment.astype(jnp.int32),
            first=cuts.first.astype(jnp.int32),
        )
        watched = jax.tree.map(lambda leaf: cuts.take(leaf, horizon), truth.watched)
        pool = trajectories.push(state.pool, Candidates(rows=rows, origin=origin, watched=watched))
        return dataclasses.replace(state, pool=pool, seen=state.seen + jnp.sum(rows.valid)), rows, cuts

    def asks(self, config, iteration):
        period = self.schedule(config).period
        return True if period == 1 else (iteration + 1) % period == 0

    def ask(self, config, state, collected, key):
        schedule, pool = self.schedule(config), state.pool.rows
        uncertainty, expected = self.score(config, state.fitted, collected.statistics, pool.rows)
        eligible = pool.valid & (uncertainty >= config.query.min_cv)
        due = jnp.minimum(query.due(config.query.fraction, state.seen), state.due + schedule.picks)
        budget = config.query.budget if config.query.budget else np.iinfo(np.int32).max
        allowed = jnp.minimum(due - state.due, budget - state.labelled)
        certain = allowed - self._random_picks(config, state.due, due)
        score = query.mixed(
            jnp.where(eligible, uncertainty, -jnp.inf),
            jax.random.uniform(substream(key, Stream.QUERY), uncertainty.shape),
            certain,
        )
        picked, chosen = query.pick(pool, score, schedule.picks, allowed)
        low, middle, high = jnp.nanquantile(jnp.where(pool.valid, uncertainty, jnp.nan), jnp.array([0.1, 0.5, 0.9]))
        return Query(
            rows=picked.rows,
            origin=picked.origin,
            watched=picked.watched,
            expected=expected[chosen],
            random=(jnp.arange(schedule.picks) >= certain) & picked.valid,
            due=due,
            row={
                "query/accepted_pool": _accepted(pool.rows),
                "query/cv_picked": episodes.mean_of(uncertainty[chosen], picked.valid),
                "query/cv_pool": episodes.mean_of(uncertainty, pool.valid),
                "query/cv_pool_10": low,
                "query/cv_pool_50": middle,
                "query/cv_pool_90": high,
            },
        )

    def answers_inside(self, config):
        return labelers.kind(config.labels.by) == labelers.ORACLE

    def answer(self, config, query, key):
        if labelers.kind(config.labels.by) == labelers.FUNCTION:
            shown = labelers.shown(query.rows.inputs, query.rows.length, query.watched, self.task.observation_size)
            first = labelers.judged(config.labels.by, shown)
            said = labelers.prefix_labels(first, query.rows.length, self.ends(config))
            return Answers(labels=jnp.where(query.rows.mask, said, 0.0), mask=query.rows.mask)
        said = labels.flip(query.rows.labels, substream(key, Stream.LABEL), config.labels.noise)
        return Answers(labels=said, mask=query.rows.mask)

    def absorb(self, config, state, collected, query, answers, key):
        # A trajectory that nobody could judge is neither kept nor counted.
        length = jnp.where(jnp.any(answers.mask, axis=1), query.rows.length, 0)
        new = dataclasses.replace(query.rows, length=length, labels=answers.labels, mask=answers.mask)
        fitted, after, passes = self.fit(
            config,
            state.fitted,
            collected.statistics,
            new,
            query.expected,
            state.store,
            substream(key, Stream.REFIT),
        )
        # Adds zero, but makes the write depend on the refit, which reads the store. Otherwise XLA would write to a copy
        # of the store, tens of megabytes.
        written = state.store.written + jnp.minimum(passes, 0)
        row = {
            **_fit_row(query.expected, new, "before"),
            **_fit_row(after, new, "after"),
            "refit/passes": passes.astype(jnp.float32),
            "query/accepted_picked": _accepted(new),
            **query.row,
        }
        residuals = new.labels[:, -1] - jnp.exp(query.expected[:, -1])
        known = query.random & new.mask[:, -1]
        return dataclasses.replace(
            state,
            fitted=fitted,
            residuals=episodes.push(state.residuals, known[None], residuals=residuals[None]),
            pool=trajectories.clear(state.pool),
            store=trajectories.push(dataclasses.replace(state.store, written=written), new),
            due=query.due,
            labelled=state.labelled + jnp.sum(new.valid),
            queries=state.queries + jnp.sum(new.mask),
        ), row

    def bias(self, config: Config, state: LabelledState) -> jax.Array:
        """How much more often trajectories are accepted than estimated, from labels of random picks, [].

        Shrunk towards zero while there are few of them.
        """
        if not config.constraint.correction:
            return jnp.zeros(())
        count = jnp.minimum(state.residuals.count, state.residuals.size).astype(jnp.float32)
        mean = episodes.means(state.residuals)["residuals"]
        return jnp.where(count > 0, mean * count / (count + _FEW), 0.0)

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
        share = 1.0 if config.query.rule == "random" else config.query.random_share
        return query.newly_due(share, before, due)


def _accepted(rows: Trajectories) -> jax.Array:
    """Fraction of full trajectories that the labeler accepts, []."""
    return episodes.mean_of(rows.labels[:, -1], rows.valid)


def _fit_row(log_probability: jax.Array, rows: Trajectories, when: str) -> dict[str, jax.Array]:
    """Metrics of log-probabilities [K, P] against the labels of rows [K]."""
    scores = credit.scores(log_probability, rows.labels, rows.mask)
    return {
        f"refit/{when}/loss": credit.cross_entropy(log_probability, rows.labels, rows.mask),
        f"refit/{when}/accuracy": scores.accuracy,
        f"refit/{when}/precision": scores.precision,
        f"refit/{when}/recall": scores.recall,
    }
