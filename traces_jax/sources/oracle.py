"""The true cost and its limit, known."""

import jax.numpy as jnp

from traces_jax.core import episodes
from traces_jax.sources.base import Verdict


class Oracle:
    """Reads the truth; has no memory and learns nothing."""

    learns = False

    def summary_size(self, config):
        del config
        return 0

    def learned(self, state):
        return state

    def with_learned(self, state, learned):
        del learned
        return state

    def init(self, config, key, prior):
        del config, key, prior

    def memory(self, config, count):
        del config, count

    def summarize(self, memory):
        del memory

    def remember(self, config, state, statistics, memory, observation, action):
        del config, state, statistics, memory, observation, action

    def judge(self, config, state, statistics, transitions, truth, window, key, index):
        del state, statistics, transitions, key, index
        measure = episodes.means(window)["costs"]
        limit = jnp.asarray(config.constraint.cost_limit, jnp.float32)
        return None, Verdict(cost=truth.cost, measure=measure, limit=limit), {}
