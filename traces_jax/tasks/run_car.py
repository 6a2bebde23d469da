"""The car of the run tasks."""

import jax
import jax.numpy as jnp

from traces_jax.tasks import rotation, run


class Car(run.Run):
    """A car that faces away from its goal, so it has to drive in reverse. Actions: throttle and steering."""

    horizon = 200
    speed_limit = 1.5
    model = "car_run.xml"
    frame_skip = 4
    observation_size = 7
    action_size = 2

    drop_height = 0.2
    wheel_radius = 0.15
    steering_angle = 0.5
    # The original's motors act through compliant gears. Here each axle is pulled towards a target speed, with
    # parameters fitted to how the original accelerates and brakes. Target speeds, m/s, for values of the throttle:
    throttles = (0.0, 0.1, 0.3, 0.7, 1.0)
    aims = (0.0, 0.42, 1.19, 3.1, 4.65)
    # The force of both axles: its slope at small speed differences, N per m/s, and its limit at large ones, N.
    stiffness = 9.7
    strength = 52.0
    # Indices of the wheels in qvel: left and right, front and rear. The front ones come after their steering hinges.
    axles = ((7, 9), (10, 11))

    @property
    def nominal(self) -> tuple[jax.Array, jax.Array]:
        qpos, qvel = super().nominal
        height, velocity = run.fall(self.drop_height, self.frame_skip)
        return qpos.at[2].set(height), qvel.at[2].set(velocity)

    def _shake(self, qpos, rng):
        joints = qpos[7:]
        return qpos.at[7:].add(jax.random.uniform(rng, joints.shape, minval=-0.1, maxval=0.1))

    def control(self, state, action):
        throttle, steer = super().control(state, action)
        speeds = self.wheel_radius * jnp.mean(state.pipeline_state.qvel[jnp.array(self.axles)], axis=1)
        torques = 0.5 * self.wheel_radius * self._pull(self._aim(throttle) - speeds)
        return jnp.concatenate([torques, self.steering_angle * jnp.stack([steer, steer])])

    def _aim(self, throttle: jax.Array) -> jax.Array:
        """The target speed [] of a throttle []."""
        size = jnp.interp(jnp.abs(throttle), jnp.array(self.throttles), jnp.array(self.aims))
        return jnp.sign(throttle) * size

    def _pull(self, missing: jax.Array) -> jax.Array:
        """Forces for differences to the target speed, of any shape."""
        force = self.stiffness * missing
        return force / (1.0 + jnp.abs(force) / self.strength)

    def _observe(self, pipeline, memory):
        del memory
        nose = rotation.rotate(pipeline.qpos[3:7], jnp.array([1.0, 0.0, 0.0]))
        # The yaw of a car standing on end is undefined.
        cosine, sine = nose[:2] / jnp.maximum(jnp.linalg.norm(nose[:2]), 1e-6)
        rate = run.world_spin(pipeline)[2]
        return jnp.concatenate([0.1 * pipeline.qpos[:2], pipeline.qvel[:2], jnp.stack([sine, cosine, 0.1 * rate])])

    def _judge(self, after, action):
        del after, action
        return jnp.zeros(()), jnp.zeros((), bool)
