"""Constrained policy optimization: see `base`."""

from traces_jax.config import Config
from traces_jax.core.agent import Modules
from traces_jax.core.networks import Critic, GaussianActor
from traces_jax.solvers.base import Batch, Solver
from traces_jax.solvers.ppo_lag import PPOLag
from traces_jax.tasks import Task

__all__ = ["Batch", "PPOLag", "Solver", "make"]


def make(config: Config, task: Task, *, one_lane_at_a_time: bool) -> Solver:
    """The solver of a config, with networks for a task."""
    modules = Modules(
        actor=GaussianActor(
            hidden=config.policy.hidden,
            actions=task.action_size,
            activation=config.policy.activation,
            mean=config.policy.mean,
            initial_log_std=config.policy.initial_log_std,
            min_std=config.policy.min_std,
        ),
        critic=Critic(hidden=config.critic.hidden, activation=config.critic.activation),
    )
    return PPOLag(modules, one_lane_at_a_time=one_lane_at_a_time)
