"""Rotations as unit quaternions (w, x, y, z), MuJoCo's order."""

import jax
import jax.numpy as jnp


def rotate(quaternion: jax.Array, vector: jax.Array) -> jax.Array:
    """Rotates a vector from the body frame to the world frame. quaternion: [4], vector: [3]. Returns [3]."""
    scalar, axis = quaternion[0], quaternion[1:]
    across = 2.0 * jnp.cross(axis, vector)
    return vector + scalar * across + jnp.cross(axis, across)


def scalar_last(quaternion: jax.Array) -> jax.Array:
    """The same rotation as (x, y, z, w), Bullet's order. quaternion: [4]. Returns [4]."""
    return jnp.roll(quaternion, -1)


def up(quaternion: jax.Array) -> jax.Array:
    """The body's z axis in the world. quaternion: [4]. Returns [3]."""
    return rotate(quaternion, jnp.array([0.0, 0.0, 1.0]))
