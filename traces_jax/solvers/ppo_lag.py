"""PPO-Lagrangian: PPO on a mix of reward and cost advantages, weighted by a Lagrange multiplier.

Benchmarking safe exploration in deep reinforcement learning (Ray, Achiam, Amodei, 2019).
"""

from traces_jax.solvers import lagrangian, ppo
from traces_jax.solvers.lagrangian import Lagrangian, LagrangianState


class PPOLag(Lagrangian):
    """Updates the multiplier first, from the episodes just finished, then the policy with the multiplier fixed."""

    def update(self, config, state, batch, verdict, key, progress):
        multiplier, weight, multiplier_row = lagrangian.ascend(
            config.lagrange, state.multiplier, verdict, maximum=config.lagrange.maximum
        )
        advantage = lagrangian.penalized(batch, weight)
        agent, row = ppo.update(
            self.modules,
            state.agent,
            ppo.samples(batch, advantage),
            key,
            ppo=config.ppo,
            actor_lr=ppo.actor_rate(config.ppo, progress),
        )
        return LagrangianState(agent=agent, multiplier=multiplier), {**multiplier_row, **row}
