"""The ball of the run tasks."""

import jax
import jax.numpy as jnp

from traces_jax.tasks import run


class Ball(run.Run):
    """A ball that is pushed by horizontal forces."""

    horizon = 100
    speed_limit = 2.5
    model = "ball_run.xml"
    frame_skip = 4
    observation_size = 7
    action_size = 2

    mass = 0.3
    radius = 0.5
    push = 3.5
    # Meters: times the weight, the maximum torque of rolling and spinning friction.
    rolling_friction = 0.024

    def control(self, state, action):
        action = super().control(state, action)
        inertia = 0.4 * self.mass * self.radius**2
        rolling_inertia = inertia + self.mass * self.radius**2
        # Friction is constant during a step, so it is computed from the spin that the push alone would cause.
        torque = self.radius * self.push * jnp.stack([-action[1], action[0], jnp.zeros(())])
        spin = run.world_spin(state.pipeline_state) + self.physics.environment_seconds * torque / rolling_inertia
        # Rolling involves the mass of the whole ball, spinning on the spot only its inertia about the axis.
        rolling = self._resist(spin.at[2].set(0.0), rolling_inertia)
        spinning = self._resist(spin.at[:2].set(0.0), inertia)
        return jnp.concatenate([self.push * action, rolling + spinning])

    def _resist(self, spin: jax.Array, inertia: float) -> jax.Array:
        """The torque [3] against a spin [3]: of constant size, limited to what stops it within the step."""
        rate = jnp.linalg.norm(spin)
        enough = inertia / self.physics.environment_seconds
        most = self.rolling_friction * self.mass * run.GRAVITY
        return -spin * jnp.minimum(enough, most / jnp.maximum(rate, 1e-6))

    def _observe(self, pipeline, memory):
        del memory
        spin = run.world_spin(pipeline)
        return jnp.concatenate([0.1 * pipeline.qpos[:2], 0.2 * pipeline.qvel[:2], 0.1 * spin])

    def _judge(self, after, action):
        del after
        return -0.5 * jnp.linalg.norm(self.clip(action)), jnp.zeros((), bool)
