"""Solvers that need a constraint on the summed cost of an episode."""

import jax
import jax.numpy as jnp

from traces_jax.config import Config, ConfigError
from traces_jax.solvers.base import Solver
from traces_jax.sources.base import Source, Verdict

# The gap while no episode has ended: far below the limit, so that the constraint does not bind.
_NO_VIOLATION = -1e6


class Additive(Solver):
    """Base class: refuses a source whose constraint is not on a sum of costs."""

    def check(self, config, source):
        _check_sum(config, source)


class Linearized(Additive):
    """Base class of solvers that predict the summed cost of a new policy from the cost advantages of the old one."""

    def check(self, config, source):
        super().check(config, source)
        scaled = config.normalize.costs
        if scaled == "always" or (scaled != "never" and source.learns):
            raise ConfigError(
                f"normalize.costs={scaled} is not right with method.solver={config.method.solver}: it compares costs "
                "with their limit, which is not normalized; never would be right."
            )

    def gap(self, config: Config, verdict: Verdict) -> jax.Array:
        """Measure minus limit [], in the unit of mean cost advantages.

        A mean advantage is (1 - gamma) times the change of the sum. The released programs leave that factor out.
        """
        gap = jnp.where(jnp.isfinite(verdict.measure), verdict.measure - verdict.limit, _NO_VIOLATION)
        return gap if config.method.solver_version == "as_released" else (1.0 - config.ppo.gamma) * gap


def _check_sum(config: Config, source: Source) -> None:
    if source.sums(config):
        return
    method = config.method
    raise ConfigError(
        f"method.solver={method.solver} is not right with method.source={method.source} and "
        f"constraint.form={config.constraint.form}: it needs a limit of the summed cost of an episode, and this is one "
        "of a probability; constraint.form=jensen, or method.solver=ppo_lag, would be right."
    )
