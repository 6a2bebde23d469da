"""The quadrotor of the run tasks.

Rotors are not simulated bodies: they reach the commanded speed within one control step, so their effect on the airframe
has a closed form. `State.info["rotors"]` contains their speeds, rad/s about the body's z axis.
"""

import math

import jax
import jax.numpy as jnp

from traces_jax.tasks import rotation, run

# rad/s at which four rotors carry the weight, and the share of it that a full action adds.
HOVER_SPEED = 461.522787
ACTION_SHARE = 0.1
DIRECTIONS = (1.0, -1.0, 1.0, -1.0)
# A rotor's moment of inertia about its axis, kg m^2.
ROTOR_INERTIA = 2.67e-4
# Inertia that drag acts on when the rotors are tilted, kg m^2. Fitted to the decay of pitch in free flight: with the
# rotors' true moment across the axis, 1.34e-4, it would take a fifth longer.
ROTOR_SIDE_INERTIA = 1.80e-4
# Propeller: metres of advance per turn, and newtons for one (metre per second)^2 of air moved.
PITCH = 0.11938
THRUST_FACTOR = 0.0452905559
# Metres from the centre to a rotor: front, right, back, left.
ARM = 0.34
# What meets the floor: half sizes of the airframe's box, and the rotors' discs, metres.
BOX = (0.3, 0.3, 0.17)
DISC_CENTRES = ((ARM, 0.0, 0.02), (0.0, -ARM, 0.02), (-ARM, 0.0, 0.02), (0.0, ARM, 0.02))
DISC_RADIUS = 0.28
DISC_HALF_HEIGHT = 0.005
# Metres above the floor up to which a part counts as touching it.
CONTACT_GAP = 3e-4


class Drone(run.Run):
    """Four rotors on a cross; the first points along the corridor."""

    horizon = 200
    ends_early = True
    speed_limit = 1.5
    model = "drone_run.xml"
    frame_skip = 2
    observation_size = 17
    action_size = 4

    def _memory(self):
        return {"rotors": jnp.zeros((4,), jnp.float32)}

    def _remember(self, action):
        return {"rotors": self._commanded(action)}

    def _commanded(self, action: jax.Array) -> jax.Array:
        """Rotor speeds [4] for an action [4]."""
        return jnp.asarray(DIRECTIONS) * HOVER_SPEED * (1.0 + ACTION_SHARE * self.clip(action))

    def control(self, state, action):
        pipeline = state.pipeline_state
        quaternion = pipeline.qpos[3:7]
        commanded = self._commanded(action)
        up = rotation.up(quaternion)
        forces = thrust(jnp.abs(commanded), jnp.dot(pipeline.qvel[:3], up))
        torque = thrust_torque(forces) + rotor_torque(
            state.info["rotors"], commanded, pipeline.qvel[3:6], seconds=self.physics.environment_seconds
        )
        # World directions are those at the start of the step. For thrust, the original uses the orientation of one
        # simulator step before; the difference is visible in free flight.
        lagging = up - run.SIMULATOR_SECONDS * jnp.cross(run.world_spin(pipeline), up)
        return jnp.concatenate([lagging * jnp.sum(forces), rotation.rotate(quaternion, torque)])

    def _observe(self, pipeline, memory):
        rotors = 0.0025 * (memory["rotors"] - HOVER_SPEED * jnp.asarray(DIRECTIONS))
        return jnp.concatenate(
            [
                0.1 * pipeline.qpos[:3],
                0.2 * pipeline.qvel[:3],
                rotation.scalar_last(pipeline.qpos[3:7]),
                0.1 * run.world_spin(pipeline),
                rotors,
            ]
        )

    def _judge(self, after, action):
        del action
        quaternion = after.qpos[3:7]
        # Rolled past a quarter turn is the same as the body's up axis pointing below the horizon.
        lost = rotation.up(quaternion)[2] < 0.0
        touching = jnp.sum(lowest_points(after.qpos[2], quaternion) < CONTACT_GAP)
        reward = jnp.where(lost, -10.0, 1.0) - 0.01 * jnp.sum(jnp.square(after.qvel[3:6])) - touching
        return reward, lost


def thrust(speed: jax.Array, climb: jax.Array) -> jax.Array:
    """Newtons of rotors at speed [4] rad/s while the body rises along its axis at climb [] m/s. Returns [4]."""
    stream = speed / (2.0 * math.pi) * PITCH
    return THRUST_FACTOR * stream * (stream - climb)


def rotor_torque(before: jax.Array, after: jax.Array, spin: jax.Array, *, seconds: float) -> jax.Array:
    """Torque of the rotors on the body in one control step, in its frame. Returns [3] N m.

    before, after: [4] rotor speeds at both ends of the step; spin: [3] angular velocity of the body.
    """
    # Bullet damps rotors like all bodies; their motors transmit the torque to the airframe. It depends on the speeds
    # at the start of each of the two simulator steps; by the second, the rotors have changed theirs.
    turning = jnp.stack([before, after]) + spin[2]
    damping = run.DRAG * (1.0 + jnp.abs(turning))
    about_axis = -ROTOR_INERTIA * jnp.sum(damping * turning) / 2
    across = -ROTOR_SIDE_INERTIA * jnp.sum(damping) / 2 * spin[:2]
    spin_up = -ROTOR_INERTIA * jnp.sum(after - before) / seconds
    gyroscopic = -jnp.cross(spin, jnp.array([0.0, 0.0, ROTOR_INERTIA]) * jnp.sum(after))
    return gyroscopic + jnp.concatenate([across, (about_axis + spin_up)[None]])


def thrust_torque(forces: jax.Array) -> jax.Array:
    """Torque of the thrusts [4] about the center, in the body's frame. Returns [3] N m."""
    front, right, back, left = forces
    return ARM * jnp.stack([left - right, back - front, jnp.zeros(())])


def lowest_points(height: jax.Array, quaternion: jax.Array) -> jax.Array:
    """Heights of the lowest points of the box and of the four discs, [5]. height: [] of the centre, quaternion: [4]."""
    rotate = jax.vmap(rotation.rotate, in_axes=(None, 0))
    box = jnp.sum(jnp.abs(rotate(quaternion, jnp.diag(jnp.asarray(BOX)))[:, 2]))
    upright = jnp.abs(rotation.up(quaternion)[2])
    disc = DISC_RADIUS * jnp.sqrt(jnp.maximum(0.0, 1.0 - upright**2)) + DISC_HALF_HEIGHT * upright
    discs = rotate(quaternion, jnp.asarray(DISC_CENTRES))[:, 2] - disc
    return height + jnp.concatenate([-box[None], discs])
