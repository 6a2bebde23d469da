"""TraCeS: the cost of a step is its learned share of a violation, from labels of trajectories and their prefixes.

pool -> pick -> label -> refit -> credits. The true cost enters at one place, the labeler; what it says is sealed in the
pool and opened only for trajectories that are picked.
"""

import dataclasses
import fractions
import math

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from traces_jax import episodes, normalize, optimize
from traces_jax.config import Config
from traces_jax.estimator import credit, network, refit
from traces_jax.feedback import labels, query, trajectories
from traces_jax.feedback.trajectories import Cuts, Ring, Trajectories
from traces_jax.keys import Stream, substream
from traces_jax.sources.base import Verdict
from traces_jax.tasks import Task

# Time steps between those in which dead units are looked for: it need not cost as much as the credits do.
_EVERY = 8


@flax.struct.dataclass
class TracesState:
    """What a lane knows of the cost.

    Attributes:
      fitted: the estimator.
      pool: trajectories since the last query, with the labeler's sealed answers.
      store: labelled trajectories.
      judged: summed costs of the last finished episodes, and the probabilities of being acceptable they stand for.
      seen: [] trajectories that were ever in the pool.
      due: [] how many of them were to be labelled by the last query. Fewer are, if they were not worth it or the
        budget is spent.
      labelled: [] trajectories labelled so far.
      queries: [] single labels so far.
    """

    fitted: optimize.Trained
    pool: Ring
    store: Ring
    judged: episodes.EpisodeWindow
    seen: jax.Array
    due: jax.Array
    labelled: jax.Array
    queries: jax.Array


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How often labels are asked for, the same for all lanes.

    Attributes:
      places: episodes of an iteration for which there is room.
      period: iterations between queries.
      picks: most trajectories in a query.
    """

    places: int
    period: int
    picks: int


class Traces:
    """The source for one task."""

    learns = True

    def __init__(self, task: Task):
        self._task = task
        self._features = task.observation_size + task.action_size

    def schedule(self, config: Config) -> Schedule:
        """From the share of trajectories to be labelled and how many at a time."""
        count = config.environment.count * (config.environment.steps // self._task.horizon)
        # As it is written: 0.29 of 100 are 29, which the nearest binary number falls short of.
        share = fractions.Fraction(str(config.query.fraction))
        period = math.ceil(config.query.batch / (share * count))
        # Early ends make room for more episodes. Those beyond twice the usual are dropped, and counted.
        places = 2 * count if self._task.ends_early else count
        return Schedule(places=places, period=period, picks=math.ceil(share * places * period))

    def summary_size(self, config):
        return config.estimator.hidden

    def learned(self, state):
        return state.fitted

    def with_learned(self, state, learned):
        return dataclasses.replace(state, fitted=learned)

    def fresh(self, config: Config, key: jax.Array) -> optimize.Trained:
        """An estimator that has learned nothing. key: consumed."""
        settings = config.estimator
        estimator = network.init(
            key,
            features=self._features,
            hidden=settings.hidden,
            layers=settings.depth,
            decoder=settings.decoder,
            reads_step=settings.decoder_reads == "step",
            initial_mean=network.initial_mean(self._task.horizon, settings.initial_probability),
            mean_spread=settings.initial_spread,
        )
        return optimize.init(estimator)

    def init(self, config, key, prior):
        schedule, ends, horizon = self.schedule(config), self.ends(config), self._task.horizon
        store = trajectories.empty(config.refit.store, horizon, self._features, len(ends))
        if prior is not None and prior.rows is not None:
            store = trajectories.push(store, prior.rows)
        return TracesState(
            fitted=self.fresh(config, key) if prior is None else prior.fitted,
            pool=trajectories.empty(schedule.places * schedule.period, horizon, self._features, len(ends)),
            store=store,
            judged=episodes.init(config.lagrange.window, ("costs", "probabilities")),
            seen=jnp.zeros((), jnp.int32),
            due=jnp.zeros((), jnp.int32),
            # Labels that were there before the run are not the run's: they count neither here nor against its budget.
            labelled=jnp.zeros((), jnp.int32),
            queries=jnp.zeros((), jnp.int32),
        )

    def memory(self, config, count):
        return jnp.zeros((count, config.estimator.depth, config.estimator.hidden))

    def summarize(self, memory):
        return memory[:, -1]

    def remember(self, config, state, statistics, memory, observation, action):
        inputs = self.prepare(config, statistics, jnp.concatenate([observation, action], axis=-1))
        carry = network.advance(state.fitted.params, jnp.moveaxis(memory, 1, 0), inputs)
        return jnp.moveaxis(carry, 0, 1)

    def judge(self, config, state, statistics, transitions, truth, window, key, index):
        del window
        inputs = jnp.concatenate([transitions.observation, transitions.action], axis=-1)
        fresh_rows, cuts = self._trajectories(config, inputs, transitions, truth)
        # The summaries are those of this estimator, not of one that is refitted below.
        estimator = state.fitted.params
        prepared = self.prepare(config, statistics, inputs)
        seen = (transitions.summary, transitions.next_summary, prepared)
        mu, sigma = network.decode(estimator, *seen)
        # Log-probability that the episode up to each step is acceptable.
        expected = -episodes.running_sum(credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp), truth.ended)
        cost = self._cost(config, mu, sigma, substream(key, Stream.CREDIT))
        state = dataclasses.replace(
            state, pool=trajectories.push(state.pool, fresh_rows), seen=state.seen + jnp.sum(fresh_rows.valid)
        )

        def ask(state: TracesState) -> tuple[TracesState, jax.Array, dict[str, jax.Array]]:
            state, row = self._query(config, state, statistics, key)
            if config.method.order == "released":
                return state, cost, row
            began = jnp.concatenate([jnp.ones_like(truth.ended[:1]), truth.ended[:-1]])
            summaries = network.encode(state.fitted.params, prepared, began)
            new = network.decode(state.fitted.params, *summaries, prepared)
            return state, self._cost(config, *new, substream(key, Stream.CREDIT)), row

        def wait(state: TracesState) -> tuple[TracesState, jax.Array, dict[str, jax.Array]]:
            row = jax.eval_shape(ask, state)[2]
            return state, cost, jax.tree.map(lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), row)

        period = self.schedule(config).period
        if period == 1:
            state, cost, query_row = ask(state)
        else:
            state, cost, query_row = lax.cond((index + 1) % period == 0, ask, wait, state)

        summed = episodes.running_sum(cost, truth.ended)
        judged = episodes.push(state.judged, truth.ended, costs=summed, probabilities=jnp.exp(-summed))
        state = dataclasses.replace(state, judged=judged)
        judged_means = episodes.means(judged)
        if config.constraint.form == "probability":
            measure, limit = -judged_means["probabilities"], -config.constraint.d
        else:
            measure, limit = judged_means["costs"], -jnp.log(config.constraint.d)
        log_probability = cuts.last(expected)
        said = log_probability >= math.log(0.5)
        finished = lambda values: episodes.mean_of(values.astype(jnp.float32), fresh_rows.valid)  # noqa: E731
        jensen_gap, jensen_bound = credit.jensen(log_probability, fresh_rows.valid)
        row = {
            "estimate/accepted": finished(said),
            "estimate/probability": finished(jnp.exp(log_probability)),
            # Before the refit: how far the estimator lags behind the policy.
            "estimate/right": finished(said == (fresh_rows.labels[:, -1] > 0)),
            "estimate/jensen_gap": jensen_gap,
            "estimate/jensen_bound": jensen_bound,
            "estimate/clamped": jnp.mean(credit.clamped_share(mu, sigma, clamp=config.estimator.clamp)),
            "estimate/dead_units": network.dead_share(estimator, *jax.tree.map(lambda leaf: leaf[::_EVERY], seen)),
            "estimate/cost_where_none": jnp.sum(jnp.where(truth.cost == 0, cost, 0.0))
            / jnp.maximum(jnp.sum(truth.cost == 0), 1)
            / jnp.maximum(jnp.mean(cost), 1e-12),
            "window/probability": judged_means["probabilities"],
            "labels/trajectories": state.labelled.astype(jnp.float32),
            "labels/queries": state.queries.astype(jnp.float32),
            "pool/dropped": cuts.dropped.astype(jnp.float32),
            **query_row,
        }
        return state, Verdict(cost=cost, measure=measure, limit=jnp.asarray(limit, jnp.float32)), row

    def _query(self, config, state, statistics, key):
        """Picks, labels, refits, stores, empties the pool."""
        schedule, ends = self.schedule(config), self.ends(config)
        pool = state.pool.rows
        prepare = lambda inputs: self.prepare(config, statistics, inputs)  # noqa: E731
        clamp = config.estimator.clamp
        _, mu, sigma = network.apply(state.fitted.params, refit.time_major(pool.inputs, prepare))
        cv = self._uncertainty(config, mu, sigma, pool.length)
        eligible = pool.valid & (cv >= config.query.min_cv)
        due = jnp.minimum(query.due(config.query.fraction, state.seen), state.due + schedule.picks)
        budget = config.query.budget if config.query.budget else np.iinfo(np.int32).max
        allowed = jnp.minimum(due - state.due, budget - state.labelled)
        score = query.mixed(
            jnp.where(eligible, cv, -jnp.inf),
            jax.random.uniform(substream(key, Stream.QUERY), cv.shape),
            allowed - self._random_picks(config, state.due, due),
        )
        picked, chosen = query.pick(pool, score, schedule.picks, allowed)
        noisy = labels.flip(picked.labels, substream(key, Stream.LABEL), config.labels.noise)
        picked = dataclasses.replace(picked, labels=noisy)
        before = refit.at_prefixes(credit.clamped_mean(mu, sigma, clamp=clamp), pool.length, ends)[chosen]
        fitted, after, passes = refit.refit(
            state.fitted,
            picked,
            before,
            state.store,
            substream(key, Stream.REFIT),
            refit=config.refit,
            prepare=prepare,
            ends=ends,
            clamp=clamp,
        )

        def row_of(log_probability: jax.Array, when: str) -> dict[str, jax.Array]:
            scores = credit.scores(log_probability, picked.labels, picked.mask)
            return {
                f"refit/{when}/loss": credit.cross_entropy(log_probability, picked.labels, picked.mask),
                f"refit/{when}/accuracy": scores.accuracy,
                f"refit/{when}/precision": scores.precision,
                f"refit/{when}/recall": scores.recall,
            }

        # Zero, but not known before the refit has read the store: else XLA would write to a copy, tens of megabytes.
        written = state.store.written + jnp.minimum(passes, 0)
        whole = lambda rows: episodes.mean_of(rows.labels[:, -1], rows.valid)  # noqa: E731
        low, middle, high = jnp.nanquantile(jnp.where(pool.valid, cv, jnp.nan), jnp.array([0.1, 0.5, 0.9]))
        row = {
            **row_of(before, "before"),
            **row_of(after, "after"),
            "refit/passes": passes.astype(jnp.float32),
            "query/accepted_picked": whole(picked),
            "query/accepted_pool": whole(pool),
            "query/cv_picked": episodes.mean_of(cv[chosen], picked.valid),
            "query/cv_pool": episodes.mean_of(cv, pool.valid),
            "query/cv_pool_10": low,
            "query/cv_pool_50": middle,
            "query/cv_pool_90": high,
        }
        state = dataclasses.replace(
            state,
            fitted=fitted,
            pool=trajectories.clear(state.pool),
            store=trajectories.push(dataclasses.replace(state.store, written=written), picked),
            due=due,
            labelled=state.labelled + jnp.sum(picked.valid),
            queries=state.queries + jnp.sum(picked.mask),
        )
        return state, row

    def _random_picks(self, config, before: jax.Array, due: jax.Array) -> jax.Array:
        """How many of the labels that became due between two queries go to trajectories drawn at random, [].

        Not a share of these few, which may be a single one, but what is missing of the share of all labels. That needs
        no luck: after every query it is within half a pick of what was asked for.
        """
        share = 1.0 if config.query.rule == "random" else config.query.random_share
        return query.newly_due(share, before, due)

    def _trajectories(self, config, inputs, transitions, truth) -> tuple[Trajectories, Cuts]:
        """The episodes that ended in a rollout, with the labeler's answers; and where they lie in it."""
        ends, horizon = self.ends(config), self._task.horizon
        cuts = trajectories.find(truth.ended, truth.episode_length, self.schedule(config).places)
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
        return rows, cuts

    def _uncertainty(self, config, mu, sigma, length) -> jax.Array:
        """The coefficient of variation of each trajectory's summed cost, [N]. mu, sigma: [T, N]; length: [N]."""
        if config.estimator.cost == "mean":
            mean, variance = credit.lognormal_mean(mu, sigma), credit.lognormal_variance(mu, sigma)
        else:
            clamp = config.estimator.clamp
            mean, variance = (
                credit.clamped_mean(mu, sigma, clamp=clamp),
                credit.clamped_variance(mu, sigma, clamp=clamp),
            )
        inside = jnp.arange(mu.shape[0])[:, None] < length
        return credit.coefficient_of_variation(mean, variance, inside)

    def _cost(self, config, mu, sigma, key) -> jax.Array:
        """The cost of each step, of any shape."""
        if config.estimator.cost == "mean":
            return credit.lognormal_mean(mu, sigma)
        if config.estimator.cost == "sample":
            return -credit.sample(mu, sigma, jax.random.normal(key, mu.shape), clamp=config.estimator.clamp)
        return credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp)

    def prepare(self, config: Config, statistics: normalize.RunningStatistics, inputs: jax.Array) -> jax.Array:
        """Raw inputs [..., F] as the network reads them. statistics: of observations."""
        if not config.estimator.normalize_inputs:
            return inputs
        observation, action = jnp.split(inputs, [self._task.observation_size], axis=-1)
        clip = config.estimator.action_clip
        return jnp.concatenate([normalize.apply(statistics, observation), jnp.clip(action, -clip, clip)], axis=-1)

    def ends(self, config: Config) -> np.ndarray:
        """Lengths of the prefixes that are judged, [P]."""
        return trajectories.prefix_ends(self._task.horizon, config.labels.interval, config.labels.terminal_only)
