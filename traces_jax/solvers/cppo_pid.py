"""CPPO-PID: PPO-Lagrangian whose multiplier is the output of a PID controller.

Responsive safety in reinforcement learning by PID Lagrangian methods (Stooke, Achiam, Abbeel, 2020).
"""

import flax.struct

from traces_jax.core import agent as agent_lib
from traces_jax.solvers import lagrangian, pid, ppo
from traces_jax.solvers.base import Solver


@flax.struct.dataclass
class CPPOPIDState:
    """The networks and the controller."""

    agent: agent_lib.Agent
    controller: pid.PIDState


class CPPOPID(Solver):
    """The controller moves first, from the episodes just finished, then the policy with its output fixed."""

    def init(self, config, key, observation_size, context_size):
        return CPPOPIDState(
            agent=agent_lib.init(self.modules, key, observation_size, context_size),
            controller=pid.init(config.lagrange.initial, config.pid.delay),
        )

    def update(self, config, state, batch, verdict, key, progress):
        unit = pid.unit(verdict.limit)
        controller = pid.update(
            state.controller, verdict.measure / unit, verdict.limit / unit, verdict.fresh, pid=config.pid
        )
        agent, row = ppo.update(
            self.modules,
            state.agent,
            ppo.samples(batch, lagrangian.penalized(batch, controller.multiplier)),
            key,
            ppo=config.ppo,
            actor_lr=ppo.actor_rate(config.ppo, progress),
        )
        return CPPOPIDState(agent=agent, controller=controller), {
            "constraint/multiplier": controller.multiplier,
            "constraint/integral": controller.integral,
            **row,
        }
