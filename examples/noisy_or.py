"""A cost model of one's own: every step ends the patience of the labeler with a probability of its own.

The log-probability that an episode is acceptable is a sum over its steps. Minus that sum is constrained to -log d,
which is enough for a probability of d. Train with it:

  python -m traces_jax.train --config experiments/ball_run.py --config.method.source=examples.noisy_or:NoisyOr
"""

import jax
import jax.numpy as jnp

from traces_jax.core import networks
from traces_jax.estimator import credit
from traces_jax.feedback import trajectories
from traces_jax.sources import Stepwise


class NoisyOr(Stepwise):
    """The cost of a step is -log(1 - p), p its probability to spoil the episode."""

    # A model saved by `pretrain` fits runs with the same meaning of labels.
    fitted_with = ("constraint.cost_limit", "labels.interval", "labels.terminal_only", "labels.early_end")

    def module(self, config):
        return networks.MLP((64, 64), 1, "relu")

    def normalizes(self, config):
        return True

    def cost(self, config, params, inputs):
        # A fresh network says 0; an episode of a hundred steps must not be hopeless from the start.
        return jax.nn.softplus(self.module(config).apply(params, inputs)[..., 0] - 5.0)

    def log_probability(self, config, params, totals):
        return -totals["costs"]

    def loss(self, config, params, inputs, rows):
        total = jnp.cumsum(self.cost(config, params, inputs), axis=0)
        at_ends = trajectories.at_prefixes(-total, rows.length, self.ends(config))
        return credit.cross_entropy(at_ends, rows.labels, rows.mask)

    def budget(self, config, state):
        return -jnp.log(jnp.asarray(config.constraint.d, jnp.float32))
