"""What the solvers with a learned Lagrange multiplier share: it moves first, then weighs costs against rewards."""

import flax.struct
import jax

from traces_jax.config import LagrangeConfig
from traces_jax.core import agent as agent_lib
from traces_jax.core.optimize import Number
from traces_jax.solvers import advantages, multipliers
from traces_jax.solvers.base import Batch, Solver
from traces_jax.sources.base import Verdict


@flax.struct.dataclass
class LagrangianState:
    """The networks and the multiplier."""

    agent: agent_lib.Agent
    multiplier: multipliers.LagrangeState


class Lagrangian(Solver):
    """Base class: the state at the start of a run."""

    def init(self, config, key, observation_size, context_size):
        return LagrangianState(
            agent=agent_lib.init(self.modules, key, observation_size, context_size),
            multiplier=multipliers.init(config.lagrange.initial),
        )


def ascend(
    settings: LagrangeConfig, state: multipliers.LagrangeState, verdict: Verdict, *, maximum: Number
) -> tuple[multipliers.LagrangeState, jax.Array, dict[str, jax.Array]]:
    """Updates the multiplier from the episodes just finished. Returns it, the weight in force [], and scalars."""
    state = multipliers.update(state, verdict.measure, verdict.limit, verdict.fresh, lr=settings.lr, maximum=maximum)
    weight = multipliers.in_force(state.multiplier, verdict.measure, verdict.limit, proportional=settings.proportional)
    return state, weight, {"constraint/multiplier": state.multiplier, "constraint/in_force": weight}


def penalized(batch: Batch, weight: jax.Array) -> jax.Array:
    """The advantage [T, B] of reward minus weighted cost."""
    return multipliers.mix(
        advantages.standardize(batch.reward_advantage), advantages.center(batch.cost_advantage), weight
    )
