"""Episodes that may be labelled: how many wait for a query, and how they are cut out of rollouts."""

import dataclasses
import fractions
import math

import jax
import jax.numpy as jnp

from traces_jax.config import Config, ConfigError
from traces_jax.core import spanning
from traces_jax.feedback import labelers, trajectories
from traces_jax.feedback.trajectories import Cuts, Origin
from traces_jax.sources.base import FLOAT, Collected
from traces_jax.tasks import Task


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When labels are queried; the same for all lanes.

    Attributes:
      places: maximum number of episodes taken from an iteration. Those beyond are dropped and counted.
      period: iterations between queries.
      pool: maximum number of episodes between two queries.
      picks: maximum number of trajectories in a query.
    """

    places: int
    period: int
    pool: int
    picks: int


def schedule(config: Config, task: Task) -> Schedule:
    """The schedule that follows from query.fraction and query.batch."""
    count, steps, horizon = config.environment.count, config.environment.steps, task.horizon
    # The decimal value as written: 0.29 of 100 must be 29, but the float nearest to 0.29 is smaller.
    share = fractions.Fraction(str(config.query.fraction))
    if not config.spans:
        whole = count * (steps // horizon)
        period = math.ceil(config.query.batch / (share * whole))
        # If episodes can end early, an iteration may have more of them.
        places = 2 * whole if task.ends_early else whole
        return Schedule(places=places, period=period, pool=places * period, picks=math.ceil(share * places * period))
    period = math.ceil(config.query.batch / (share * fractions.Fraction(count * steps, horizon)))

    def most(environments: int, iterations: int) -> int:
        return spanning.most_ends(environments, iterations * steps, horizon, early=task.ends_early)

    tracked = len(spanning.tracked(config))
    pool = most(tracked, period)
    return Schedule(
        places=most(tracked, 1), period=period, pool=pool, picks=min(pool, math.ceil(share * most(count, period)))
    )


def check(config: Config, task: Task) -> None:
    """Raises a ConfigError if a source that learns from labels does not support the settings."""
    if labelers.kind(config.labels.by) == labelers.ORACLE and not task.has_cost:
        raise ConfigError(
            f"labels.by={config.labels.by} is not right: {task.name} has no cost; people, a file of labels "
            f"or module:function would be right."
        )
    _check_episodes(config, task)
    picks = schedule(config, task).picks
    if config.refit.store < picks:
        # All trajectories of a query are stored together and must not overwrite each other.
        raise ConfigError(
            f"refit.store={config.refit.store} is not right: a query labels up to {picks} trajectories at once "
            f"(query.batch={config.query.batch}, query.fraction={config.query.fraction}), which must fit in; "
            f"{picks} or more would be right."
        )


def _check_episodes(config: Config, task: Task) -> None:
    """Raises a ConfigError if there would be nothing, or not enough, to label."""
    settings = config.environment
    if not config.spans:
        if settings.steps % task.horizon:
            raise ConfigError(
                f"environment.steps={settings.steps} is not right: labels are for whole episodes; a multiple of "
                f"{task.horizon} steps, or environment.reset_each_iteration=false, would be right."
            )
        return
    due = math.ceil(fractions.Fraction(str(config.query.fraction)) * settings.count)
    if len(spanning.tracked(config)) < due:
        raise ConfigError(
            f"pool.tracked={config.pool.tracked} is not right: only episodes of tracked environments can be labelled, "
            f"and query.fraction={config.query.fraction} of {settings.count} environments is due; {due} or more, or a "
            f"lower query.fraction, would be right."
        )


def open_bytes(config: Config, task: Task, features: int) -> int:
    """Memory of the open episodes of tracked environments."""
    if not config.spans:
        return 0
    ring = spanning.ring_steps(config.environment.steps, task.horizon)
    return FLOAT * ring * len(spanning.tracked(config)) * (features + 1)


def cut(
    config: Config, task: Task, opened: spanning.Open | None, collected: Collected, inputs: jax.Array
) -> tuple[spanning.Open | None, Cuts, spanning.Past, Origin]:
    """Cuts the episodes [N] that ended out of a rollout and, if they span iterations, what came before.

    opened: before the rollout; inputs: [T, B, F] raw. Returns the open episodes with the steps of the rollout, where
    episodes ended in it, their steps [N, horizon, ...] (zeros past the end), and where they began.
    """
    truth, places = collected.truth, schedule(config, task).places
    steps = spanning.Past(inputs=inputs, cost=truth.cost, watched=truth.watched)
    iteration = jnp.full((places,), collected.iteration)
    if opened is None:
        cuts = trajectories.find(truth.ended, truth.episode_length, places)
        taken, first = jax.tree.map(lambda leaf: cuts.take(leaf, task.horizon), steps), cuts.first
    else:
        past, cuts, taken = spanning.finished(
            opened.past, config, steps, truth, collected.iteration, places, task.horizon
        )
        opened = dataclasses.replace(opened, past=past)
        earlier, first = jnp.divmod(cuts.first, config.environment.steps)
        iteration += earlier
    origin = Origin(iteration=iteration, environment=cuts.environment.astype(jnp.int32), first=first.astype(jnp.int32))
    return opened, cuts, taken, origin


def most_labelled(config: Config, task: Task) -> int:
    """The largest number of trajectories that a run labels."""
    episodes = config.iterations * schedule(config, task).places
    due = math.floor(fractions.Fraction(str(config.query.fraction)) * episodes + fractions.Fraction(1, 2))
    return min(due, config.query.budget) if config.query.budget else due
