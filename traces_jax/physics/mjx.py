"""MJX, MuJoCo in JAX: the room for GPUs and TPUs; pure and differentiable, slow on CPUs."""

import jax
import jax.numpy as jnp
from jax import lax
from mujoco import mjx

from traces_jax.physics import base


class MjxPhysics:
    """Steps one environment; vmap makes a batch.

    Only positions, velocities and the solver's warm start live between steps. The rest of `mjx.Data` is rebuilt from
    a template, which keeps the carry of the outer scans small.
    """

    name = "mjx"

    def __init__(self, model: base.Model):
        self.mj_model = model.load()
        self.environment_seconds = base.environment_seconds(model, self.mj_model)
        self._frame_skip = model.frame_skip
        self._base = self.mj_model.body(model.base).id
        self._root = base.RootFrame(self.mj_model, model.base)
        self._model = mjx.put_model(self.mj_model)
        self._template = mjx.make_data(self.mj_model)

    def reset(self, qpos: jax.Array, qvel: jax.Array) -> base.PhysicsState:
        """qpos: [nq], qvel: [nv]."""
        memory = jnp.zeros((self.mj_model.nv,), jnp.float32)
        return base.PhysicsState(qpos=qpos, qvel=qvel, xpos=self._root.position(qpos), memory=memory)

    def step(self, state: base.PhysicsState, control: jax.Array) -> base.PhysicsState:
        """control: [nu], held for one environment step."""
        data = self._template.replace(qpos=state.qpos, qvel=state.qvel, qacc_warmstart=state.memory, ctrl=control)
        data = lax.fori_loop(0, self._frame_skip, lambda _, data: mjx.step(self._model, data), data)
        return base.PhysicsState(
            qpos=data.qpos, qvel=data.qvel, xpos=data.xpos[self._base], memory=data.qacc_warmstart
        )
