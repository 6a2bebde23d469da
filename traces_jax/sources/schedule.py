"""When labels are queried, and how many trajectories at most."""

import dataclasses
import fractions
import math

from traces_jax.config import Config
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


def plan(config: Config, task: Task) -> Schedule:
    """The schedule that follows from query.fraction and query.batch."""
    count = config.environment.count * (config.environment.steps // task.horizon)
    # The decimal value as written: 0.29 of 100 must be 29, but the float nearest to 0.29 is smaller.
    share = fractions.Fraction(str(config.query.fraction))
    period = math.ceil(config.query.batch / (share * count))
    # If episodes can end early, an iteration may have more of them. Those beyond twice the usual number are dropped
    # and counted.
    places = 2 * count if task.ends_early else count
    return Schedule(places=places, period=period, picks=math.ceil(share * places * period))
