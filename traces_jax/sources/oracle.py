"""The source that uses the true cost and its limit."""

import jax.numpy as jnp

from traces_jax.config import ConfigError
from traces_jax.core import episodes
from traces_jax.sources.base import Source, Verdict


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

    def verdict(self, config, state, collected, reading, asked, key):
        del reading, asked, key
        verdict = Verdict(
            cost=collected.truth.cost,
            measure=episodes.means(collected.window)["costs"],
            limit=jnp.asarray(config.constraint.cost_limit, jnp.float32),
            fresh=jnp.any(collected.truth.ended),
        )
        return state, verdict, {}
