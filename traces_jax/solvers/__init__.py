"""Constrained policy optimization: see `base`."""

from traces_jax.config import Config
from traces_jax.core import own
from traces_jax.core.agent import Modules
from traces_jax.core.networks import Critic, GaussianActor
from traces_jax.solvers.base import AgentState, Batch, Solver
from traces_jax.solvers.cpo import CPO
from traces_jax.solvers.cppo_pid import CPPOPID
from traces_jax.solvers.cup import CUP
from traces_jax.solvers.focops import FOCOPS
from traces_jax.solvers.p3o import P3O
from traces_jax.solvers.ppo import PPO
from traces_jax.solvers.ppo_lag import PPOLag
from traces_jax.solvers.saute import PPOSaute, TRPOSaute
from traces_jax.solvers.trpo import TRPO
from traces_jax.solvers.trpo_lag import TRPOLag
from traces_jax.tasks import Task

__all__ = ["AgentState", "Batch", "PPOLag", "Solver", "SolverError", "make"]

_BY_NAME: dict[str, type[Solver]] = {
    "ppo_lag": PPOLag,
    "cppo_pid": CPPOPID,
    "cup": CUP,
    "focops": FOCOPS,
    "p3o": P3O,
    "trpo_lag": TRPOLag,
    "cpo": CPO,
    "trpo_saute": TRPOSaute,
    "ppo_saute": PPOSaute,
    "ppo": PPO,
    "trpo": TRPO,
}


class SolverError(own.OwnError):
    """Why a user's solver cannot be used, in one sentence."""


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
    name = config.method.solver
    found = _BY_NAME.get(name) or own.load("method.solver", name, Solver, SolverError)
    return found(modules, horizon=task.horizon, one_lane_at_a_time=one_lane_at_a_time)
