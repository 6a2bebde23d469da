"""MuJoCo's C engine, called from inside jit: the fast simulator on CPUs.

Every environment step is one call for all environments of all lanes on a device. The engine works in float64. Its exact
state is carried through the float32 program as raw bits in `PhysicsState.memory`, so there is no loss of precision
between steps, and a resumed run is bit-exact. `engine.call` describes the layout.
"""

import hashlib

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax import lax

from traces_jax.physics import base, engine


class NativePhysics:
    """Steps a batch of environments in the calling thread.

    The batch is sharded over JAX's CPU devices, one for each core (see `parallel`), whose threads step in parallel. A
    thread pool behind a single call was slower: every environment step would wait for the slowest thread, a fifth of
    the time for Ant and half of it for HalfCheetah.
    """

    name = "native"

    def __init__(self, model: base.Model):
        self.mj_model = model.load()
        if self.mj_model.na:
            raise ValueError(f"{model.path.name} has actuator activations, which physics=native does not carry")
        self.environment_seconds = base.environment_seconds(model, self.mj_model)
        self._frame_skip = model.frame_skip
        self._senses = model.senses
        self._root = base.RootFrame(self.mj_model, model.base)
        self._memory = 2 * self.mj_model.nq + 4 * self.mj_model.nv + 1
        self._number = _number(self.mj_model, (model.base, model.drag, model.senses))
        engine.register(
            self._number,
            self.mj_model,
            base=self.mj_model.body(model.base).id,
            drag=model.drag,
            senses=model.senses,
        )

    def reset(self, qpos: jax.Array, qvel: jax.Array, sensors: jax.Array | None = None) -> base.PhysicsState:
        """qpos: [nq], qvel: [nv], sensors: [nsensordata] if known."""
        start = _bits(jnp.concatenate([qpos, qvel]))
        memory = jnp.zeros((self._memory,), jnp.uint32).at[: start.shape[0]].set(start)
        if self._senses and sensors is None:
            return self._call(memory, jnp.zeros((self.mj_model.nu,)), substeps=0)
        return base.PhysicsState(qpos=qpos, qvel=qvel, xpos=self._root.position(qpos), sensors=sensors, memory=memory)

    def step(self, state: base.PhysicsState, control: jax.Array) -> base.PhysicsState:
        """control: [nu], held for one environment step."""
        return self._call(state.memory, control, substeps=self._frame_skip)

    def _call(self, memory: jax.Array, control: jax.Array, *, substeps: int) -> base.PhysicsState:
        model = self.mj_model
        words = jnp.concatenate([memory, _bits(control)])
        size = self._memory + model.nq + model.nv + 3 + (model.nsensordata if self._senses else 0)
        out = engine.call(self._number, words, substeps=substeps, result_size=size)
        numbers = lax.bitcast_convert_type(out[self._memory :], jnp.float32)
        qpos, qvel, xpos, sensors = jnp.split(numbers, [model.nq, model.nq + model.nv, model.nq + model.nv + 3])
        return base.PhysicsState(
            qpos=qpos,
            qvel=qvel,
            xpos=xpos,
            sensors=sensors if self._senses else None,
            memory=out[: self._memory],
        )


def _number(mj_model: mujoco.MjModel, settings: tuple) -> int:
    """A number that identifies the computation in any process: a hash of the compiled model and the engine's settings.

    The file alone is not enough: it may include others, and a model may be modified after it was read.
    """
    content = np.zeros(mujoco.mj_sizeModel(mj_model), np.uint8)
    mujoco.mj_saveModel(mj_model, None, content)
    digest = hashlib.blake2b(content.tobytes() + repr(settings).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def _bits(numbers: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(numbers.astype(jnp.float32), jnp.uint32)
