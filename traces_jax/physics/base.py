"""The interface between tasks and simulators.

A `Physics` steps one MuJoCo model. Tasks are written for a single environment
and vmapped; both simulators (`native`, `mjx`) follow that.
"""

import dataclasses
import pathlib
from typing import Protocol

import flax.struct
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

# Environments of all lanes on a device that physics=mjx has room for with mjx.impl=warp.
WARP_WORLDS = 1 << 14


class PhysicsError(Exception):
    """Why a simulator cannot run a model, in one sentence."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A task's model for a simulator.

    Attributes:
      path: the MJCF file.
      frame_skip: simulator steps in one environment step.
      base: name of the body whose position is reported.
      drag: damping of every body, as in Bullet: a force of mass (inertia) * drag * velocity * (1 + |velocity|), linear
        and angular, recomputed at every simulator step. MuJoCo has no equivalent. Not for models integrated by RK4.
      senses: whether sensors are evaluated at the state after a step (and at the start), into `PhysicsState.sensors`.
    """

    path: pathlib.Path
    frame_skip: int
    base: str
    drag: float = 0.0
    senses: bool = False

    def load(self) -> mujoco.MjModel:
        """Compiles the MJCF. Disables MuJoCo's automatic reset: a diverging state must show as non-finite numbers."""
        model = mujoco.MjModel.from_xml_path(str(self.path))
        if self.drag and model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4:
            raise ValueError(
                f"{self.path.name} is integrated by RK4, which has no place for drag; use another integrator"
            )
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        return model


@flax.struct.dataclass
class PhysicsState:
    """One environment's mechanical state.

    Attributes:
      qpos: [nq] generalized positions.
      qvel: [nv] generalized velocities.
      xpos: [3] world position of the base body as the engine leaves it after a step: the kinematics of the last
        integrator stage, which is what the original tasks read. Exact at reset.
      sensors: [nsensordata] the model's sensors, None unless the model senses.
      memory: the simulator's own state between steps (warm start, full precision); opaque.
    """

    qpos: jax.Array
    qvel: jax.Array
    xpos: jax.Array
    sensors: jax.Array | None
    memory: jax.Array


class Physics(Protocol):
    """A simulator of one model."""

    name: str
    mj_model: mujoco.MjModel
    environment_seconds: float

    def reset(self, qpos: jax.Array, qvel: jax.Array, sensors: jax.Array | None = None) -> PhysicsState:
        """Starts from qpos [nq], qvel [nv].

        sensors: [nsensordata] at that start, for a model with sensors. A task passes them if it knows them: rollouts
        draw an initial state for every step, which must not need a simulator call. Otherwise they are evaluated.
        """
        ...

    def step(self, state: PhysicsState, control: jax.Array) -> PhysicsState:
        """Holds control [nu] for one environment step."""
        ...


def environment_seconds(model: Model, mj_model: mujoco.MjModel) -> float:
    """Seconds of simulated time in one environment step."""
    return float(mj_model.opt.timestep * model.frame_skip)


class RootFrame:
    """World position and velocity of a root body from qpos and qvel alone, so that a reset needs no simulator call."""

    def __init__(self, mj_model: mujoco.MjModel, base: str):
        body = mj_model.body(base)
        if mj_model.body_parentid[body.id] != 0:
            raise ValueError(f"base body {base!r} must hang directly from the world")
        self._offset = np.zeros(3)
        self._matrix = np.zeros((3, mj_model.nq))
        self._rates = np.zeros((3, mj_model.nv))
        joints = range(body.jntadr[0], body.jntadr[0] + body.jntnum[0])
        free = [joint for joint in joints if mj_model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE]
        if free:
            address = mj_model.jnt_qposadr[free[0]]
            self._matrix[:, address : address + 3] = np.eye(3)
            address = mj_model.jnt_dofadr[free[0]]
            self._rates[:, address : address + 3] = np.eye(3)
            return
        self._offset = body.pos.copy()
        for joint in joints:
            if mj_model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE:
                address = mj_model.jnt_qposadr[joint]
                self._matrix[:, address] = mj_model.jnt_axis[joint]
                self._offset -= mj_model.jnt_axis[joint] * mj_model.qpos0[address]
                self._rates[:, mj_model.jnt_dofadr[joint]] = mj_model.jnt_axis[joint]

    def position(self, qpos: jax.Array) -> jax.Array:
        """qpos: [nq]. Returns [3]."""
        return jnp.asarray(self._offset, jnp.float32) + jnp.asarray(self._matrix, jnp.float32) @ qpos

    def velocity(self, qvel: jax.Array) -> jax.Array:
        """Linear velocity of the body's origin. qvel: [nv]. Returns [3]."""
        return jnp.asarray(self._rates, jnp.float32) @ qvel
