"""The source that uses the true cost and its limit."""

import jax.numpy as jnp

from traces_jax.core import episodes
from traces_jax.sources.base import Source, Verdict

# A violation by this share of the limit counts as full.
_TOLERANCE = 0.1


class Oracle(Source):
    """Reads the true cost. Has no memory and learns nothing."""

    def step_cost(self, config, state, statistics, memory, next_memory, observation, action, true_cost):
        del config, state, statistics, memory, next_memory, observation, action
        return true_cost

    def sums(self, config):
        return True

    def budget(self, config, state):
        return jnp.asarray(config.constraint.cost_limit, jnp.float32)

    def verdict(self, config, state, collected, reading, asked, key):
        del reading, asked, key
        limit = self.budget(config, state)
        noisy, mean = (episodes.means(of)["costs"] for of in (collected.windows.noisy, collected.windows.mean))
        verdict = Verdict(
            cost=collected.truth.cost,
            measure=episodes.constrained(noisy, mean, config, collected.iteration),
            deployed=episodes.worse(noisy, mean, policy=config.constraint.policy),
            limit=limit,
            # A limit of zero must not make every cost a full violation.
            tolerance=_TOLERANCE * jnp.maximum(limit, 1.0),
            fresh=jnp.any(collected.truth.ended),
        )
        return state, verdict, {}
