"""RLSF, reinforcement learning from safety feedback (Chirra, Varakantham and Paruchuri, NeurIPS 2024).

Trajectories with states unlike all labelled ones are shown to the labeler, who labels segments of them. A classifier
learns from every state with the label of its segment. A step costs 1 if its state is classified as bad, and the policy
may make `alpha` such steps in an episode.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from traces_jax.config import ConfigError
from traces_jax.core import episodes, networks
from traces_jax.feedback import labels, novelty, trajectories
from traces_jax.feedback.trajectories import Trajectories
from traces_jax.sources.base import FLOAT, Part
from traces_jax.sources.stepwise import Stepwise

# Probabilities are kept this far from 0 and 1, so that their logarithms are finite.
_SURE = 1e-6


class RLSF(Stepwise):
    """The RLSF source for one task."""

    uncertainty_name = "novelty"
    sized_by = ("rlsf.hidden",)
    fitted_with = (
        *("rlsf.hidden", "rlsf.reads_action", "rlsf.normalize_inputs", "rlsf.segment", "rlsf.segment_limit"),
        *("constraint.cost_limit", "labels.early_end"),
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

    def read(self, config, params, inputs, ended):
        bad = jax.nn.sigmoid(self.logit(config, params, inputs))
        good = episodes.running_sum(1.0 - bad, ended) / episodes.running_sum(jnp.ones_like(bad), ended)
        return {
            "bad": bad,
            "mean": (bad > config.rlsf.bad_above).astype(jnp.float32),
            "log_probability": _log(good),
        }

    def loss(self, config, params, inputs, rows):
        place = self._segment_of_step(config)
        inside = rows.mask[:, place].T & (jnp.arange(len(place))[:, None] < rows.length)
        entropy = optax.sigmoid_binary_cross_entropy(self.logit(config, params, inputs), 1.0 - rows.labels[:, place].T)
        return jnp.sum(jnp.where(inside, entropy, 0.0)) / jnp.maximum(jnp.sum(inside), 1)

    def judge(self, config, params, inputs, rows):
        """Every state predicts the label of its segment; together they predict it by their mean."""
        good = jax.nn.sigmoid(-self.logit(config, params, inputs))
        begins, ends = (jnp.minimum(bound, rows.length[:, None]) for bound in self._segments(config))
        total = jnp.concatenate([jnp.zeros_like(good[:1]), jnp.cumsum(good, axis=0)])
        row = jnp.arange(rows.count)[:, None]
        mean = (total[ends, row] - total[begins, row]) / jnp.maximum(ends - begins, 1)
        cost = (good < 1.0 - config.rlsf.bad_above).astype(jnp.float32)
        return cost, _log(mean)

    # --- Labels: one of each segment, and last one of the whole trajectory.

    def ends(self, config):
        segment, horizon = config.rlsf.segment, self.task.horizon
        if segment and horizon % segment:
            near = max(n for n in range(1, min(segment, horizon) + 1) if horizon % n == 0)
            raise ConfigError(
                f"rlsf.segment={segment} is not right: it must divide the {horizon} steps of an episode; "
                f"{near} would be right."
            )
        return np.asarray([*range(segment, horizon + 1, segment), horizon]) if segment else np.asarray([horizon])

    def label(self, config, cost, length, terminated):
        ends, violates = self.ends(config), config.labels.early_end == "violating"
        whole = labels.oracle(
            cost,
            length,
            terminated,
            limit=config.constraint.cost_limit,
            ends=ends[-1:],
            early_end_violates=violates,
        )
        if not config.rlsf.segment:
            return whole
        parts = labels.segments(
            cost,
            length,
            terminated,
            limit=config.rlsf.segment_limit,
            ends=ends[:-1],
            early_end_violates=violates,
        )
        return jnp.concatenate([parts, whole], axis=1)

    def mask(self, config, length):
        begins, _ = self._segments(config)
        return begins < length[:, None]

    def asked(self, config, rows):
        """Whoever finds nothing wrong says so once; otherwise every segment is labelled."""
        if not config.rlsf.segment:
            return jnp.sum(rows.mask)
        parts, mask = rows.labels[:, :-1], rows.mask[:, :-1]
        spotless = jnp.all((parts > 0) | ~mask, axis=1)
        return jnp.sum(jnp.where(rows.valid, jnp.where(spotless, 1, jnp.sum(mask, axis=1)), 0))

    def _segments(self, config) -> tuple[np.ndarray, np.ndarray]:
        """First and last bound of what is labelled, [P] each."""
        ends = self.ends(config)
        return np.concatenate([ends[:-1] - config.rlsf.segment, [0]]), ends

    def _segment_of_step(self, config) -> np.ndarray:
        """The label that counts for each step of an episode, [T]."""
        steps = np.arange(self.task.horizon)
        return steps // config.rlsf.segment if config.rlsf.segment else np.zeros_like(steps)

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


def _log(probability: jax.Array) -> jax.Array:
    return jnp.log(jnp.clip(probability, _SURE, 1.0 - _SURE))
