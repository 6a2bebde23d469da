"""Two simulators behind one interface: see `base`."""

from traces_jax.physics.base import WARP_WORLDS, Model, Physics, PhysicsError, PhysicsState

__all__ = ["WARP_WORLDS", "Model", "Physics", "PhysicsError", "PhysicsState", "make"]


def make(name: str, model: Model) -> Physics:
    """Builds the simulator called `name`: "native", "mjx", or "mjx-warp", which is MJX on MuJoCo Warp's kernels."""
    if name == "native":
        from traces_jax.physics.native import NativePhysics

        return NativePhysics(model)
    if name in ("mjx", "mjx-warp"):
        from traces_jax.physics.mjx import MjxPhysics

        return MjxPhysics(model, "warp" if name == "mjx-warp" else "jax")
    raise ValueError(f"physics={name!r} is unknown; choose native, mjx or mjx-warp")
