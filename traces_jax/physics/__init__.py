"""Two simulators behind one interface: see `base`."""

from traces_jax.physics.base import Model, Physics, PhysicsState

__all__ = ["Model", "Physics", "PhysicsState", "make"]


def make(name: str, model: Model) -> Physics:
    """Builds the simulator called `name` ("native" or "mjx")."""
    if name == "native":
        from traces_jax.physics.native import NativePhysics

        return NativePhysics(model)
    if name == "mjx":
        from traces_jax.physics.mjx import MjxPhysics

        return MjxPhysics(model)
    raise ValueError(f"physics={name!r} is unknown; choose native or mjx")
