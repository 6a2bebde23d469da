"""TraCeS: the cost of a step is its estimated credit for a violation, learned from labels of trajectory prefixes."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.config import Config, ConstraintConfig
from traces_jax.core import episodes, networks, normalize, optimize, rollout, spanning
from traces_jax.core.keys import Stream, substream
from traces_jax.estimator import credit, network, objective, refit
from traces_jax.feedback.trajectories import Cuts, Trajectories
from traces_jax.sources import correction, metrics
from traces_jax.sources.base import FLOAT, KEPT, UPDATED, Collected, Part, judge
from traces_jax.sources.labelled import ASKED, PREFIX_LABELS, Labelled, LabelledState, Score

# Dead units are counted on every 8th time step only, to keep this diagnostic cheaper than the credits themselves.
_EVERY = 8
# Floats held at once for each step, per input feature and per unit of a GRU layer, when computing the credits of a
# rollout (judged), scoring a pool, and fitting a batch. Measured with XLA.
_JUDGED_FEATURE, _JUDGED_UNIT = 3, 8
_SCORED_FEATURE, _SCORED_UNIT = 1, 6
_FITTED_FEATURE, _FITTED_UNIT = 2, 14
# The decoder works on blocks of rows: one row in this many is in memory at a time, forward and backward.
_DECODED = 16


@flax.struct.dataclass
class Reading:
    """The estimator's output on a rollout, before the refit.

    Attributes:
      inputs: [T, B, F] the network's inputs.
      mu, sigma: [T, B] parameters of the log-normal credits.
      rows, cuts: the episodes that ended, and their positions in the rollout.
      estimator: the network weights used.
    """

    inputs: jax.Array
    mu: jax.Array
    sigma: jax.Array
    rows: Trajectories
    cuts: Cuts
    estimator: network.Estimator


@flax.struct.dataclass
class _Judged:
    """What an estimator says of the steps of a rollout.

    Attributes:
      steps: [T, B] by name, what is summed over an episode.
      before: [B] its sums of the episodes that were open before the rollout; empty if there were none.
      memory: [B, L, H] after the rollout, if episodes span iterations.
    """

    steps: dict[str, jax.Array]
    before: dict[str, jax.Array]
    memory: jax.Array | None

    def totals(self, ended: jax.Array) -> dict[str, jax.Array]:
        """Running sums [T, B] by name. ended: [T, B]."""
        return episodes.running_sums(self.steps, ended, self.before)


def required(constraint: ConstraintConfig, progress: jax.Array) -> jax.Array:
    """The probability [] of an acceptable trajectory that is required now. progress: [] fraction of the run completed.

    It rises linearly from `constraint.initial_d` to `constraint.d`.
    """
    d = jnp.asarray(constraint.d, jnp.float32)
    below = jnp.maximum(d - constraint.initial_d, 0.0)
    return d - below * jnp.maximum(0.0, 1.0 - progress / constraint.ramp)


class Traces(Labelled):
    """The TraCeS source for one task."""

    uncertainty_name = "cv"
    fitted_with = (
        *("estimator.hidden", "estimator.depth", "estimator.decoder", "estimator.decoder_reads"),
        *("estimator.normalize_inputs", "estimator.action_clip", *PREFIX_LABELS),
    )
    noted = ("estimator.clamp",)

    @classmethod
    def published(cls, params):
        if not isinstance(params, network.Estimator):
            return None
        return {
            "estimator.hidden": params.layers[0].hidden_kernel.shape[0],
            "estimator.depth": len(params.layers),
            "estimator.decoder": tuple(layer.bias.shape[0] for layer in params.decoder),
            "estimator.decoder_reads": "summary",
            "estimator.normalize_inputs": False,
        }

    def fresh(self, config, key):
        settings = config.estimator
        estimator = network.init(
            key,
            features=self.features,
            hidden=settings.hidden,
            layers=settings.depth,
            decoder=settings.decoder,
            reads_step=settings.decoder_reads == "step",
            initial_mean=network.initial_mean(self.task.horizon, settings.initial_probability),
            mean_spread=settings.initial_spread,
        )
        if settings.memory:
            estimator = network.with_memory(estimator, self.task.horizon)
        return optimize.init(estimator)

    def fresh_for_data(self, config, key):
        fresh = self.fresh(config, key)
        return dataclasses.replace(fresh, params=network.with_memory(fresh.params, self.task.horizon))

    def prepare(self, config, statistics, inputs):
        if not config.estimator.normalize_inputs:
            return inputs
        observation, action = jnp.split(inputs, [self.task.observation_size], axis=-1)
        clip = config.estimator.action_clip
        return jnp.concatenate([normalize.apply(statistics, observation), jnp.clip(action, -clip, clip)], axis=-1)

    def model(self, config, statistics):
        return objective.model(
            prepare=lambda inputs: self.prepare(config, statistics, inputs),
            ends=self.ends(config),
            clamp=config.estimator.clamp,
        )

    def parts(self, config):
        settings, schedule, units = config.estimator, self.schedule(config), config.estimator.hidden
        read = 2 * units + (self.features if settings.decoder_reads == "step" else 0)
        gates = 3 * units * ((self.features + units + 2) + (settings.depth - 1) * (2 * units + 2))
        # Two heads read the decoder's last layer.
        weights = gates + networks.weights(read, settings.decoder, 1) + settings.decoder[-1] + 1
        pool, batch = schedule.pool, config.refit.new_batch + config.refit.stored_batch
        of_row, steps = FLOAT * self.task.horizon, FLOAT * config.iteration_steps
        shape = ("estimator.hidden", "estimator.depth", "estimator.decoder")
        gru = ("estimator.hidden",)
        refitted = ("refit.stored_batch", "refit.new_batch", "estimator.hidden", "estimator.depth")
        scored_step = _SCORED_FEATURE * self.features + _SCORED_UNIT * units
        fitted_step = _FITTED_FEATURE * self.features + _FITTED_UNIT * units * settings.depth
        judged_step = _JUDGED_FEATURE * self.features + _JUDGED_UNIT * units
        decoded = of_row // _DECODED * max(settings.decoder)
        memory = FLOAT * config.environment.count * settings.depth * units
        replayed = of_row * len(spanning.tracked(config)) * judged_step if config.spans else 0
        return [
            *super().parts(config),
            Part("the estimator", FLOAT * KEPT * weights, shape, kept=True),
            Part("the estimator to deploy", FLOAT * KEPT * weights * config.constraint.keep, shape, kept=True),
            Part("updates of the estimator", FLOAT * UPDATED * weights, shape),
            *(
                Part("the decoder", rows * decoded, ("estimator.decoder", *ASKED), phase=phase)
                for phase, rows in (("query", pool), ("refit", batch), ("credits", config.environment.count))
            ),
            Part("the trajectories of a query", pool * of_row * scored_step, (*ASKED, *gru), phase="query"),
            Part("a refit", batch * of_row * fitted_step, refitted, phase="refit"),
            Part("credits of a rollout", steps * judged_step, (*ASKED[2:], *gru), phase="credits"),
            Part("credits of open episodes", replayed, ("pool.tracked", *gru), phase="credits"),
            Part("hidden states of episodes", memory, ("environment.count", *gru), kept=True),
        ]

    # --- Memory: the GRU's hidden state [B, layers, H]. Summary: the hidden state of its last layer.

    def summary_size(self, config):
        return config.estimator.hidden

    def memory(self, config, count):
        return jnp.zeros((count, config.estimator.depth, config.estimator.hidden))

    def summarize(self, memory):
        return memory[:, -1]

    def remember(self, config, state, statistics, memory, observation, action):
        inputs = self.inputs(config, statistics, observation, action)
        carry = network.advance(state.fitted.params, jnp.moveaxis(memory, 1, 0), inputs)
        return jnp.moveaxis(carry, 0, 1)

    def step_cost(self, config, state, statistics, memory, next_memory, observation, action, true_cost):
        del true_cost
        inputs = self.inputs(config, statistics, observation, action)
        summaries = self.summarize(memory), self.summarize(next_memory)
        mu, sigma = network.decode(state.fitted.params, *summaries, inputs)
        return credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp)

    def sums(self, config):
        return config.constraint.form == "jensen"

    def budget(self, config, state):
        return -jnp.log(jnp.asarray(config.constraint.d, jnp.float32))

    def summed(self):
        return ("costs", "expected")

    # --- Labels.

    def correction(self, config):
        return config.constraint.correction if config.constraint.form == "probability" else 0

    def random_share(self, config):
        return 1.0 if config.query.rule == "random" else config.query.random_share

    def score(self, config, state, statistics, rows):
        prepared = refit.time_major(rows.inputs, lambda inputs: self.prepare(config, statistics, inputs))
        _, mu, sigma = network.apply(state.fitted.params, prepared)
        expected = credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp)
        uncertainty = self._uncertainty(config, mu, sigma, rows.length)
        return Score(
            uncertainty=uncertainty,
            worth=uncertainty >= config.query.min_cv,
            expected=objective.at_prefixes(expected, rows.length, self.ends(config)),
        )

    # --- Costs.

    def observe(self, config, state, collected):
        transitions = collected.transitions
        inputs = jnp.concatenate([transitions.observation, transitions.action], axis=-1)
        state, rows, cuts = self.pooled(config, state, collected, inputs)
        prepared = self.prepare(config, collected.statistics, inputs)
        # The summaries were computed with these weights, before the refit, so they must be decoded with them.
        mu, sigma = network.decode(state.fitted.params, transitions.summary, transitions.next_summary, prepared)
        return state, Reading(inputs=prepared, mu=mu, sigma=sigma, rows=rows, cuts=cuts, estimator=state.fitted.params)

    def verdict(self, config, state, collected, reading, asked, key):
        truth, ended, opened = collected.truth, collected.transitions.ended, state.open
        noise, released = substream(key, Stream.CREDIT), config.method.order == "released"

        def known() -> _Judged:
            steps = self._steps(config, reading.mu, reading.sigma, noise)
            return _Judged(steps, opened.sums if opened is not None else {}, collected.memory)

        def renewed() -> _Judged:
            carry, before = self._renewed_start(config, state, collected, noise) if opened is not None else (None, {})
            fresh = jnp.ones_like(ended[:1]) if opened is None else (opened.length == 0)[None]
            began = jnp.concatenate([fresh, ended[:-1]])
            hidden, hidden_after, carry = network.proceed(state.fitted.params, carry, reading.inputs, began)
            mu, sigma = network.decode(state.fitted.params, hidden, hidden_after, reading.inputs)
            steps = self._steps(config, mu, sigma, noise)
            return _Judged(steps, before, jnp.moveaxis(carry, 1, 0) if opened is not None else None)

        known_only = asked is False or (released and opened is None)
        newest = known() if known_only else renewed() if asked is True else lax.cond(asked, renewed, known)
        judgement = known() if released else newest
        cost, summed = judgement.steps["costs"], judgement.totals(ended)["costs"]
        if opened is not None:
            # Even if these credits are of the estimator before the refit, episodes go on with the one after it.
            memory = rollout.where(ended[-1], self.memory(config, ended.shape[1]), newest.memory)
            followed = spanning.follow(opened, ended, newest.totals(ended), memory)
            state = dataclasses.replace(state, open=followed)
        judged = episodes.push_windows(
            state.judged, truth.ended, collected.plays_mean, costs=summed, violations=-jnp.expm1(-summed)
        )
        bias = correction.bias(state.residuals)
        if config.constraint.form == "probability":
            noisy, mean = jnp.clip(episodes.both(judged, "violations") - bias, 0.0, 1.0)
            final = jnp.asarray(1.0 - config.constraint.d, jnp.float32)
            limit = 1.0 - required(config.constraint, collected.iteration / config.iterations)
        else:
            noisy, mean = episodes.both(judged, "costs")
            limit = final = self.budget(config, state)
        verdict = judge(
            config,
            collected,
            cost=cost,
            noisy=noisy,
            mean=mean,
            limit=limit,
            final=final,
            tolerance=final,
        )
        row = {
            **self._row(config, collected, reading, cost, opened.sums["expected"] if opened is not None else None),
            "window/probability": 1.0 - self.violations(config, judged),
            "constraint/bias": bias[0],
            "constraint/bias_deployed": bias[1],
            **self.counters(state, reading.cuts),
        }
        return dataclasses.replace(state, judged=judged), verdict, row

    def scores(self, config, params, inputs):
        clamp = config.estimator.clamp
        hidden, mu, sigma = network.apply(params, inputs)
        mean = credit.clamped_mean(mu, sigma, clamp=clamp)
        return {
            "hidden": hidden,
            "mu": mu,
            "sigma": sigma,
            "mean": mean,
            "variance": credit.clamped_variance(mu, sigma, clamp=clamp),
            "log_probability": credit.prefix_log_probability(-mean),
        }

    def _steps(self, config: Config, mu: jax.Array, sigma: jax.Array, noise: jax.Array) -> dict[str, jax.Array]:
        """What is summed over an episode. mu, sigma: [T, B]; noise: key, consumed."""
        cost = {"costs": self._cost(config, mu, sigma, noise)}
        if not config.spans:
            return cost
        return {**cost, "expected": credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp)}

    def _renewed_start(
        self, config: Config, state: LabelledState, collected: Collected, noise: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Carry [L, B, H] and sums [B] of open episodes before the rollout, after a refit.

        Exact for tracked environments, whose steps are read again. Others keep what the estimators of their time made
        of them.
        """
        assert state.open is not None and state.open.memory is not None
        raw, inside = spanning.before(state.open, config, collected.iteration, self.task.horizon)
        inputs = self.prepare(config, collected.statistics, raw)
        # The steps before an open episode are of the one before it.
        began = inside & ~jnp.concatenate([jnp.zeros_like(inside[:1]), inside[:-1]])
        before, after, carry = network.proceed(state.fitted.params, None, inputs, began)
        mu, sigma = network.decode(state.fitted.params, before, after, inputs)
        steps = self._steps(config, mu, sigma, jax.random.fold_in(noise, 1))
        carry = jnp.where(inside[-1][:, None], carry, 0.0)
        return (
            jnp.moveaxis(state.open.memory, 1, 0).at[:, spanning.tracked(config)].set(carry),
            spanning.renewed_sums(state.open, config, steps, inside),
        )

    def _row(
        self, config: Config, collected, reading: Reading, cost: jax.Array, before: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Metrics of the estimator on this rollout, before the refit: they show how far it lags behind the policy.

        before: [B] sums of expected costs before this rollout, if episodes span iterations.
        """
        transitions, true_cost, rows = collected.transitions, collected.truth.cost, reading.rows
        clamp = config.estimator.clamp
        expected = credit.clamped_mean(reading.mu, reading.sigma, clamp=clamp)
        # Log-probability that the episode is acceptable.
        log_probability = reading.cuts.last(-episodes.running_sum(expected, transitions.ended, before))
        jensen_gap, jensen_bound = credit.jensen(log_probability, rows.valid)
        seen = (transitions.summary, transitions.next_summary, reading.inputs)
        return {
            **metrics.estimate(log_probability, rows, cost, true_cost),
            "estimate/jensen_gap": jensen_gap,
            "estimate/jensen_bound": jensen_bound,
            "estimate/clamped": jnp.mean(credit.clamped_share(reading.mu, reading.sigma, clamp=clamp)),
            "estimate/dead_units": network.dead_share(
                reading.estimator, *jax.tree.map(lambda leaf: leaf[::_EVERY], seen)
            ),
        }

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
        """The cost of each step. mu, sigma: any shape."""
        if config.estimator.cost == "mean":
            return credit.lognormal_mean(mu, sigma)
        if config.estimator.cost == "sample":
            return -credit.sample(mu, sigma, jax.random.normal(key, mu.shape), clamp=config.estimator.clamp)
        return credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp)
