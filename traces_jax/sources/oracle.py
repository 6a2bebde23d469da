"""The source that uses the true cost and its limit."""

import jax.numpy as jnp

from traces_jax.config import ConfigError
from traces_jax.core import episodes
from traces_jax.sources.base import Source, on_sum


class Oracle(Source):
    """Reads the true cost. Has no memory and learns nothing."""

    def check(self, config):
        if not self.task.has_cost:
            raise ConfigError(
                f"method.source={config.method.source} is not right: {self.task.name} has no cost; one that learns "
                f"from labels would be right."
            )

    def step_cost(self, config, state, statistics, memory, next_memory, observation, action, true_cost):
        del config, state, statistics, memory, next_memory, observation, action
        return true_cost

    def sums(self, config):
        return True

    def budget(self, config, state):
        return jnp.asarray(config.constraint.cost_limit, jnp.float32)

    def verdict(self, config, state, collected, reading, asked, key):
        del reading, asked, key
        noisy, mean = episodes.both(collected.windows, "costs")
        cost, limit = collected.truth.cost, self.budget(config, state)
        return state, on_sum(config, collected, cost=cost, noisy=noisy, mean=mean, limit=limit), {}
