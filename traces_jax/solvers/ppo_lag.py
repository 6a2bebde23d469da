"""PPO-Lagrangian: PPO on a mix of reward and cost advantages, weighted by a Lagrange multiplier."""

import flax.struct
import jax

from traces_jax.config import LagrangeConfig
from traces_jax.core import agent as agent_lib
from traces_jax.solvers import advantages, multipliers, ppo
from traces_jax.solvers.base import Solver
from traces_jax.sources.base import Verdict


@flax.struct.dataclass
class PPOLagState:
    """The networks and the multiplier."""

    agent: agent_lib.Agent
    multiplier: multipliers.LagrangeState


class PPOLag(Solver):
    """Updates the multiplier first, from the episodes just finished, then the policy with the multiplier fixed."""

    def init(self, config, key, observation_size, context_size):
        return PPOLagState(
            agent=agent_lib.init(self.modules, key, observation_size, context_size),
            multiplier=multipliers.init(config.lagrange.initial),
        )

    def update(self, config, state, batch, verdict, key, progress):
        multiplier, weight = self._multiplier(config.lagrange, state.multiplier, verdict)
        advantage = multipliers.mix(
            advantages.standardize(batch.reward_advantage), advantages.center(batch.cost_advantage), weight
        )
        if config.normalize.mixed:
            advantage = advantages.standardize(advantage)
        actor_lr = ppo.actor_rate(config.ppo, progress)
        fit = self.lane_by_lane(
            lambda agent, samples, key, settings, rate: ppo.update(
                self.modules, agent, samples, key, ppo=settings, actor_lr=rate
            )
        )
        agent, row = fit(state.agent, ppo.samples(batch, advantage), key, config.ppo, actor_lr)
        return PPOLagState(agent=agent, multiplier=multiplier), {
            "constraint/multiplier": multiplier.multiplier,
            "constraint/in_force": weight,
            "ppo/actor_lr": actor_lr,
            **row,
        }

    def _multiplier(
        self, settings: LagrangeConfig, state: multipliers.LagrangeState, verdict: Verdict
    ) -> tuple[multipliers.LagrangeState, jax.Array]:
        """The multiplier after this iteration's measure, and the one in force, []."""
        if settings.rule == "controlled":
            violation = multipliers.violation(verdict.measure, verdict.limit, verdict.tolerance)
            state = multipliers.integrate(
                state, violation, verdict.fresh, gain=settings.integral, maximum=settings.maximum
            )
            return state, multipliers.controlled(state.multiplier, violation, gain=settings.proportional)
        state = multipliers.update(
            state, verdict.measure, verdict.limit, verdict.fresh, lr=settings.lr, maximum=settings.maximum
        )
        return state, multipliers.in_force(
            state.multiplier, verdict.measure, verdict.limit, proportional=settings.proportional
        )
