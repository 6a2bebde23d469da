"""C-T, the cost-threshold baseline of the TraCeS paper: every step has a cost, and their sum a threshold.

A trajectory is acceptable with the logit `threshold - sum of costs`. Both are learned from labels of prefixes, and the
policy's mean summed cost is constrained to the threshold.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from traces_jax.core import networks, optimize
from traces_jax.feedback import trajectories
from traces_jax.sources.labelled import PREFIX_LABELS
from traces_jax.sources.stepwise import Stepwise


@flax.struct.dataclass
class CostThreshold:
    """network: of the logarithm of a step's cost; log_threshold: []."""

    network: Any
    log_threshold: jax.Array


class CT(Stepwise):
    """The C-T source for one task."""

    sized_by = ("ct.hidden",)
    fitted_with = ("ct.hidden", "ct.normalize_inputs", *PREFIX_LABELS)

    @classmethod
    def published(cls, params):
        if not isinstance(params, CostThreshold):
            return None
        layers = params.network["params"]
        widths = tuple(len(layers[f"LayerNorm_{index}"]["scale"]) for index in range(len(layers) // 2))
        return {"ct.hidden": widths, "ct.normalize_inputs": False}

    def module(self, config):
        return networks.MLP(config.ct.hidden, 1, "relu", layer_norm=True)

    def normalizes(self, config):
        return config.ct.normalize_inputs

    def fresh(self, config, key):
        network = super().fresh(config, key).params
        return optimize.init(CostThreshold(network, jnp.asarray(config.ct.initial_log_threshold, jnp.float32)))

    def cost(self, config, params, inputs):
        return jnp.exp(self.module(config).apply(params.network, inputs)[..., 0])

    def log_probability(self, config, params, totals):
        return jax.nn.log_sigmoid(jnp.exp(params.log_threshold) - totals["costs"])

    def loss(self, config, params, inputs, rows):
        cost = self.cost(config, params, inputs)
        total = trajectories.at_prefixes(jnp.cumsum(cost, axis=0), rows.length, self.ends(config))
        entropy = optax.sigmoid_binary_cross_entropy(jnp.exp(params.log_threshold) - total, rows.labels)
        return jnp.sum(jnp.where(rows.mask, entropy, 0.0)) / jnp.maximum(jnp.sum(rows.mask), 1)

    def budget(self, config, state):
        return jnp.exp(state.fitted.params.log_threshold)
