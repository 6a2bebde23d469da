"""When labels are queried, and which settings allow it."""

import dataclasses
import fractions
import math

from traces_jax.config import Config, ConfigError
from traces_jax.feedback import labelers
from traces_jax.tasks import Task


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When labels are queried; the same for all lanes.

    Attributes:
      places: maximum number of episodes taken from an iteration.
      period: iterations between queries.
      picks: maximum number of trajectories in a query.
    """

    places: int
    period: int
    picks: int


def find(config: Config, task: Task) -> Schedule:
    """The schedule that follows from query.fraction and query.batch."""
    count = config.environment.count * (config.environment.steps // task.horizon)
    # The decimal value as written: 0.29 of 100 must be 29, but the float nearest to 0.29 is smaller.
    share = fractions.Fraction(str(config.query.fraction))
    period = math.ceil(config.query.batch / (share * count))
    # If episodes can end early, an iteration may have more of them. Those beyond twice the usual number are dropped
    # and counted.
    places = 2 * count if task.ends_early else count
    return Schedule(places=places, period=period, picks=math.ceil(share * places * period))


def check(config: Config, task: Task) -> None:
    """Raises a ConfigError if a source that learns from labels does not support the settings."""
    if labelers.kind(config.labels.by) == labelers.ORACLE and not task.has_cost:
        raise ConfigError(
            f"labels.by={config.labels.by} is not right: {task.name} has no cost; people, a file of labels "
            f"or module:function would be right."
        )
    settings = config.environment
    if not settings.reset_each_iteration or settings.steps % task.horizon:
        # A rollout must consist of full trajectories.
        raise ConfigError(
            f"environment.steps={settings.steps}, reset_each_iteration={settings.reset_each_iteration} is not "
            f"right: labels are for whole episodes; a multiple of {task.horizon} steps, and true, would be "
            f"right."
        )
    picks = find(config, task).picks
    if config.refit.store < picks:
        # All trajectories of a query are stored together and must not overwrite each other.
        raise ConfigError(
            f"refit.store={config.refit.store} is not right: a query labels up to {picks} trajectories at once "
            f"(query.batch={config.query.batch}, query.fraction={config.query.fraction}), which must fit in; "
            f"{picks} or more would be right."
        )
