"""Base class of learned costs that read one step at a time: a network without a memory.

A subclass has its network, what the network says of steps, its loss, and the limit of an episode's summed cost.
"""

import abc
import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.config import Config
from traces_jax.core import episodes, networks, normalize, optimize, spanning
from traces_jax.estimator import refit
from traces_jax.feedback import trajectories
from traces_jax.feedback.trajectories import Cuts, Trajectories
from traces_jax.sources import metrics
from traces_jax.sources.base import FLOAT, KEPT, UPDATED, Collected, Part, on_sum
from traces_jax.sources.labelled import ASKED, Labelled, LabelledState, Score

# Floats held at once for each step, per input feature and per unit of the widest layer, where the network is applied,
# and where it is fitted: estimates, which tests/test_memory.py compares with XLA.
_APPLIED_FEATURE, _APPLIED_UNIT = 2, 2
_FITTED_FEATURE, _FITTED_UNIT = 2, 6


@flax.struct.dataclass
class Said:
    """What the network says of the steps of a rollout, [T, B] each.

    Attributes:
      cost: of the step.
      totals: sums over the episode until then, by name.
      log_probability: of being acceptable until then.
    """

    cost: jax.Array
    totals: dict[str, jax.Array]
    log_probability: jax.Array


@flax.struct.dataclass
class Reading:
    """The network's output on a rollout, before the refit.

    Attributes:
      inputs: [T, B, F] its inputs.
      said: of its steps.
      rows, cuts: the episodes that ended, and their positions in the rollout.
    """

    inputs: jax.Array
    said: Said
    rows: Trajectories
    cuts: Cuts


class Stepwise(Labelled):
    """A source whose learned cost of a step depends on that step alone. Picks are drawn at random.

    Attributes:
      sized_by: paths of the settings that the network's size depends on.
    """

    sized_by: tuple[str, ...] = ()

    # --- Implemented by subclasses.

    @abc.abstractmethod
    def module(self, config: Config) -> networks.MLP:
        """The network: [..., F] -> [..., 1]."""

    @abc.abstractmethod
    def normalizes(self, config: Config) -> bool:
        """Whether the network reads normalized observations."""

    @abc.abstractmethod
    def cost(self, config: Config, params: Any, inputs: jax.Array) -> jax.Array:
        """The cost [...] of steps with inputs [..., F]."""

    @abc.abstractmethod
    def log_probability(self, config: Config, params: Any, totals: dict[str, jax.Array]) -> jax.Array:
        """The log-probability [...] of being acceptable until then. totals: sums [...] of `steps` over an episode."""

    @abc.abstractmethod
    def loss(self, config: Config, params: Any, inputs: jax.Array, rows: Trajectories) -> jax.Array:
        """The loss [] of the labels of rows [N]. inputs: [T, N, F] of the network."""

    @abc.abstractmethod
    def budget(self, config: Config, state: LabelledState) -> jax.Array:
        """The limit [] of an episode's summed cost."""

    # --- May be overridden.

    def summed(self):
        return ("costs",)

    def steps(self, config: Config, params: Any, inputs: jax.Array) -> dict[str, jax.Array]:
        """What is summed over an episode: of steps with inputs [..., F], by the names of `summed`, [...] each."""
        return {"costs": self.cost(config, params, inputs)}

    # --- The network.

    def fresh(self, config, key):
        return optimize.init(self.module(config).init(key, jnp.zeros((1, self.features))))

    def prepare(self, config, statistics, inputs):
        if not self.normalizes(config):
            return inputs
        size = self.task.observation_size
        return inputs.at[..., :size].set(normalize.apply(statistics, inputs[..., :size]))

    def scores(self, config, params, inputs):
        said = self.read(config, params, inputs, jnp.zeros(inputs.shape[:-1], bool), {})
        return {"mean": said.cost, "log_probability": said.log_probability}

    def read(
        self, config: Config, params: Any, inputs: jax.Array, ended: jax.Array, before: dict[str, jax.Array]
    ) -> Said:
        """What it says of steps [T, B], of which those that ended an episode are marked.

        before: [B] sums of the episodes that were open before, by name; empty if there were none.
        """
        steps = self.steps(config, params, inputs)
        totals = episodes.running_sums(steps, ended, before)
        return Said(cost=steps["costs"], totals=totals, log_probability=self.log_probability(config, params, totals))

    def model(self, config, statistics):
        def inputs(rows: Trajectories) -> jax.Array:
            return refit.time_major(rows.inputs, lambda raw: self.prepare(config, statistics, raw))

        return refit.Model(
            loss=lambda params, rows, key: self.loss(config, params, inputs(rows), rows),
            judge=lambda params, rows: self.judge(config, params, inputs(rows), rows),
        )

    def judge(self, config: Config, params: Any, inputs: jax.Array, rows: Trajectories) -> tuple[jax.Array, jax.Array]:
        """Costs [T, N] of all steps of rows [N], and log-probabilities [N, P] of their labels. inputs: [T, N, F]."""
        said = self.scores(config, params, inputs)
        return said["mean"], trajectories.at_prefixes(said["log_probability"], rows.length, self.ends(config))

    def score(self, config, state, statistics, rows):
        _, expected = self.model(config, statistics).judge(state.fitted.params, rows)
        uncertainty = self.uncertainty(config, state, rows)
        return Score(uncertainty=uncertainty, worth=self.worth(uncertainty), expected=expected)

    def uncertainty(self, config: Config, state: LabelledState, rows: Trajectories) -> jax.Array:
        """Of trajectories [N], [N]; by default nothing is known of it."""
        del config, state
        return jnp.zeros(rows.length.shape)

    def worth(self, uncertainty: jax.Array) -> jax.Array:
        """Which trajectories of this uncertainty [N] are worth a label, [N]; by default all."""
        return jnp.ones(uncertainty.shape, bool)

    def parts(self, config):
        module, schedule = self.module(config), self.schedule(config)
        weights = networks.weights(self.features, module.hidden, 1) + (2 * sum(module.hidden) * module.layer_norm)
        widest, field = max(module.hidden), self.sized_by
        pool, batch = schedule.pool, config.refit.new_batch + config.refit.stored_batch
        of_row, steps = FLOAT * self.task.horizon, FLOAT * config.iteration_steps
        applied = _APPLIED_FEATURE * self.features + _APPLIED_UNIT * widest
        fitted = _FITTED_FEATURE * self.features + _FITTED_UNIT * widest
        return [
            *super().parts(config),
            Part("the cost model", FLOAT * KEPT * weights, field, kept=True),
            Part("the cost model to deploy", FLOAT * KEPT * weights * config.constraint.keep, field, kept=True),
            Part("updates of the cost model", FLOAT * UPDATED * weights, field),
            Part("the trajectories of a query", pool * of_row * applied, (*ASKED, *field), phase="query"),
            Part("a refit", batch * of_row * fitted, ("refit.stored_batch", "refit.new_batch", *field), phase="refit"),
            Part("costs of a rollout", steps * applied, (*ASKED[2:], *field), phase="credits"),
        ]

    # --- Costs.

    def sums(self, config):
        return True

    def step_cost(self, config, state, statistics, memory, next_memory, observation, action, true_cost):
        del memory, next_memory, true_cost
        return self.cost(config, state.fitted.params, self.inputs(config, statistics, observation, action))

    def observe(self, config, state, collected):
        transitions = collected.transitions
        inputs = jnp.concatenate([transitions.observation, transitions.action], axis=-1)
        state, rows, cuts = self.pooled(config, state, collected, inputs)
        prepared = self.prepare(config, collected.statistics, inputs)
        before = state.open.sums if state.open is not None else {}
        said = self.read(config, state.fitted.params, prepared, transitions.ended, before)
        return state, Reading(inputs=prepared, said=said, rows=rows, cuts=cuts)

    def verdict(self, config, state, collected, reading, asked, key):
        del key
        truth, ended = collected.truth, collected.transitions.ended

        def renewed() -> Said:
            before = self._renewed_sums(config, state, collected) if state.open is not None else {}
            return self.read(config, state.fitted.params, reading.inputs, ended, before)

        released = config.method.order == "released"
        if asked is False or (released and state.open is None):
            newest = reading.said
        else:
            newest = renewed() if asked is True else lax.cond(asked, renewed, lambda: reading.said)
        said = reading.said if released else newest
        if state.open is not None:
            state = dataclasses.replace(state, open=spanning.follow(state.open, ended, newest.totals))
        judged = episodes.push_windows(
            state.judged,
            truth.ended,
            collected.plays_mean,
            costs=said.totals["costs"],
            violations=-jnp.expm1(said.log_probability),
        )
        noisy, mean = episodes.both(judged, "costs")
        limit = self.budget(config, state)
        verdict = on_sum(config, collected, cost=said.cost, noisy=noisy, mean=mean, limit=limit)
        expected = reading.cuts.last(reading.said.log_probability)
        row = {
            # Before the refit: they show how far the model lags behind the policy.
            **metrics.estimate(expected, reading.rows, reading.said.cost, truth.cost),
            "window/probability": 1.0 - self.violations(config, judged),
            **self.counters(state, reading.cuts),
        }
        return dataclasses.replace(state, judged=judged), verdict, row

    def _renewed_sums(self, config: Config, state: LabelledState, collected: Collected) -> dict[str, jax.Array]:
        """Sums [B] of open episodes before the rollout, after a refit: see `spanning.renewed_sums`."""
        assert state.open is not None
        raw, inside = spanning.before(state.open, config, collected.iteration, self.task.horizon)
        steps = self.steps(config, state.fitted.params, self.prepare(config, collected.statistics, raw))
        return spanning.renewed_sums(state.open, config, steps, inside)
