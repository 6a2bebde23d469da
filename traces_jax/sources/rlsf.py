"""RLSF, reinforcement learning from safety feedback (Chirra, Varakantham and Paruchuri, NeurIPS 2024).

Trajectories with states unlike all labelled ones are shown to the labeler, who labels segments of them. A classifier
learns from every state with the label of its segment. A step costs 1 if its state is classified as bad, and the policy
may make `alpha` such steps in an episode.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from traces_jax.core import networks
from traces_jax.feedback import labels, novelty, trajectories
from traces_jax.feedback.trajectories import Trajectories
from traces_jax.sources.base import FLOAT, Answers, Part
from traces_jax.sources.labelled import PREFIX_LABELS
from traces_jax.sources.stepwise import Stepwise

# Shares are kept this far from 0 and 1, so that their logarithms are finite.
_SURE = 1e-6
# Smallest standard deviation of the number of bad steps.
_SMALLEST_STD = 0.1


def within(expected: jax.Array, variance: jax.Array, allowed: jax.Array) -> jax.Array:
    """Log-probability [...] that at most `allowed` [] of many independent steps are bad, by the normal distribution.

    expected, variance: [...] of their number.
    """
    # Numbers of steps are whole: the bound is half way to the first number that is not allowed.
    distance = jnp.floor(allowed) + 0.5 - expected
    return jax.scipy.stats.norm.logcdf(distance / jnp.sqrt(variance + _SMALLEST_STD**2))


class RLSF(Stepwise):
    """The RLSF source for one task."""

    uncertainty_name = "novelty"
    sized_by = ("rlsf.hidden",)
    rehearses = True
    fitted_with = (
        *("rlsf.hidden", "rlsf.reads_action", "rlsf.normalize_inputs", "rlsf.labels", "rlsf.segment_limit"),
        *PREFIX_LABELS,
    )

    # --- The classifier.

    def module(self, config):
        return networks.MLP(config.rlsf.hidden, 1, "relu")

    def normalizes(self, config):
        return config.rlsf.normalize_inputs

    def prepare(self, config, statistics, inputs):
        prepared = super().prepare(config, statistics, inputs)
        # Without the action its places are zero, so that one network serves both.
        return prepared if config.rlsf.reads_action else prepared.at[..., self.task.observation_size :].set(0.0)

    def logit(self, config, params, inputs: jax.Array) -> jax.Array:
        """The logit [...] of a bad state."""
        return self.module(config).apply(params, inputs)[..., 0]

    def cost(self, config, params, inputs):
        return (jax.nn.sigmoid(self.logit(config, params, inputs)) > config.rlsf.bad_above).astype(jnp.float32)

    def summed(self):
        return ("costs", "expected", "variance")

    def steps(self, config, params, inputs):
        bad = jax.nn.sigmoid(self.logit(config, params, inputs))
        variance = bad * (1.0 - bad)
        cost = (bad > config.rlsf.bad_above).astype(jnp.float32)
        return {"costs": cost, "expected": bad, "variance": variance}

    def log_probability(self, config, params, totals):
        return within(totals["expected"], totals["variance"], config.rlsf.alpha)

    def scores(self, config, params, inputs):
        bad = jax.nn.sigmoid(self.logit(config, params, inputs))
        return {"bad": bad, **super().scores(config, params, inputs)}

    def loss(self, config, params, inputs, rows):
        said, known = self._of_steps(config, rows)
        entropy = optax.sigmoid_binary_cross_entropy(self.logit(config, params, inputs), 1.0 - said.T)
        return jnp.sum(jnp.where(known.T, entropy, 0.0)) / jnp.maximum(jnp.sum(known), 1)

    def judge(self, config, params, inputs, rows):
        """The states of a segment predict its label by the mean of what they say."""
        cost, log_probability = super().judge(config, params, inputs, rows)
        if not self._cuts(config):
            return cost, log_probability
        good = jax.nn.sigmoid(-self.logit(config, params, inputs))
        total = jnp.concatenate([jnp.zeros_like(good[:1]), jnp.cumsum(good, axis=0)])
        begins, ends = (jnp.minimum(bound, rows.length[:, None]) for bound in self._segments(config))
        row = jnp.arange(rows.count)[:, None]
        mean = (total[ends, row] - total[begins, row]) / jnp.maximum(ends - begins, 1)
        of_segments = jnp.log(jnp.clip(mean, _SURE, 1.0 - _SURE))
        return cost, jnp.concatenate([of_segments, log_probability[:, -1:]], axis=1)

    # --- Labels: those of prefixes, as everywhere; or one of each segment, and last one of the whole trajectory.

    def ends(self, config):
        ends = super().ends(config)
        return np.append(ends, self.task.horizon) if self._cuts(config) else ends

    def label(self, config, cost, length, terminated):
        said = super().label(config, cost, length, terminated)
        if not self._cuts(config):
            return said
        parts = labels.segments(
            cost,
            length,
            terminated,
            limit=config.rlsf.segment_limit,
            ends=self._segments(config)[1],
            early_end_violates=config.labels.early_end == "violating",
        )
        return jnp.concatenate([parts, said[:, -1:]], axis=1)

    def mask(self, config, length):
        if not self._cuts(config):
            return super().mask(config, length)
        begins, _ = self._segments(config)
        return np.append(begins, 0) < length[:, None]

    def told(self, config, first, length, known):
        """Segments are bad from the one that has the first violating step on: whoever names it says "from here on"."""
        answers = super().told(config, first, length, known)
        if not self._cuts(config):
            return answers
        begins, ends = self._segments(config)
        said = ((first[:, None] < 0) | (first[:, None] >= ends)).astype(jnp.float32)
        there = (begins < length[:, None]) & known[:, None]
        return Answers(
            labels=jnp.concatenate([said, answers.labels[:, -1:]], axis=1),
            mask=jnp.concatenate([there, answers.mask[:, -1:]], axis=1),
        )

    def asked(self, config, rows):
        """Whoever finds nothing wrong says so once; otherwise every segment is labelled."""
        if not self._cuts(config):
            return super().asked(config, rows)
        parts, mask = rows.labels[:, :-1], rows.mask[:, :-1]
        spotless = jnp.all((parts > 0) | ~mask, axis=1)
        return jnp.sum(jnp.where(rows.valid, jnp.where(spotless, 1, jnp.sum(mask, axis=1)), 0))

    def _cuts(self, config) -> bool:
        """Whether segments are judged by themselves."""
        return config.rlsf.labels == "segments" and not config.labels.terminal_only

    def _segments(self, config) -> tuple[np.ndarray, np.ndarray]:
        """First and last bounds of the segments, [P] each."""
        ends = super().ends(config)
        return np.append(0, ends[:-1]), ends

    def _of_steps(self, config, rows: Trajectories) -> tuple[jax.Array, jax.Array]:
        """The label that counts for each step, of its segment or of the first prefix that it is in; and whether there
        is one, [N, T] each.
        """
        place = np.searchsorted(super().ends(config), np.arange(self.task.horizon), side="right")
        own = rows.mask[:, place]
        # What comes after the last inner prefix is in the whole trajectory only; so is what was rejected as a whole.
        said = jnp.where(own, rows.labels[:, place], rows.labels[:, -1:])
        return said, trajectories.inside(rows) & (own | rows.mask[:, -1:])

    # --- Novelty.

    def no_notes(self, config, key):
        return novelty.init(key, bits=config.rlsf.bits, size=self.task.observation_size)

    def note(self, config, notes, rows):
        return novelty.add(notes, self._states(rows), trajectories.inside(rows))

    def uncertainty(self, config, state, rows):
        return novelty.share(state.notes, self._states(rows), trajectories.inside(rows))

    def worth(self, uncertainty):
        return uncertainty > 0

    def _states(self, rows: Trajectories) -> jax.Array:
        return rows.inputs[..., : self.task.observation_size]

    def parts(self, config):
        size, bits = self.task.observation_size, config.rlsf.bits
        table = 2**bits + FLOAT * (bits * size + 2 * size + 1)
        return [*super().parts(config), Part("the hashes of labelled states", table, ("rlsf.bits",), kept=True)]

    # --- The constraint.

    def budget(self, config, state):
        return jnp.asarray(config.rlsf.alpha, jnp.float32)
