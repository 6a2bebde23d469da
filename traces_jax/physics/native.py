"""MuJoCo's C engine, called from inside jit: the fast room on CPUs.

Every environment step is one call to the host for all environments of all lanes on a device. The engine works in
float64; its exact state travels through the float32 program as raw bits in `PhysicsState.memory`, so nothing is lost
between steps and a resumed run is bit-exact. One packed array goes in and one comes out:

  in   memory, then the control's float32 bits
  out  memory, then the float32 bits of qpos, qvel and xpos
  memory = [fresh or not] + the engine's float64 state as pairs of words; after a reset, qpos and qvel as float32 bits
"""

import collections
import contextlib
import hashlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import mujoco
import mujoco.rollout
import numpy as np
from jax import lax

from traces_jax.physics import base, host_call

# mj_getState and mj_setState lay the parts out in this order.
_SAVED = mujoco.mjtState.mjSTATE_QPOS | mujoco.mjtState.mjSTATE_QVEL | mujoco.mjtState.mjSTATE_WARMSTART
_LOADED = _SAVED | mujoco.mjtState.mjSTATE_CTRL


class NativePhysics:
    """Steps a batch of environments in the calling thread.

    Cores are used by cutting the batch over JAX's CPU devices, one a core (see `parallel`): their threads call here
    at the same time and the engine releases the GIL. A thread pool behind a single call was measured slower: every
    environment step would wait for the slowest thread, a fifth of the time for Ant and half of it for HalfCheetah.

    Two ways to step, chosen by what the task reads. `mujoco.rollout` takes a whole batch in one call but returns
    neither body frames nor the solver's warm start. A model that `reads_frame` is stepped by `mj_step` in a Python
    loop, some five microseconds an environment: a few percent for the models that need it.
    """

    name = "native"

    def __init__(self, model: base.Model):
        self.mj_model = model.load()
        if self.mj_model.na:
            raise ValueError(f"{model.path.name} has actuator activations, which physics=native does not carry")
        self.environment_seconds = base.environment_seconds(model, self.mj_model)
        self._frame_skip = model.frame_skip
        self._base = self.mj_model.body(model.base).id
        self._root = base.RootFrame(self.mj_model, model.base)
        self._advance = self._advance_by_steps if model.reads_frame else self._advance_by_rollout
        self._idle: collections.deque[mujoco.MjData] = collections.deque()
        self._rollout = mujoco.rollout.Rollout(nthread=0)
        nq, nv = self.mj_model.nq, self.mj_model.nv
        self._saved = nq + 2 * nv
        self._memory = 1 + 2 * self._saved
        # The number names what is computed, whoever computes it: model, steps and way of stepping.
        content = model.path.read_bytes() + repr((model.frame_skip, model.base, model.reads_frame)).encode()
        self._number = int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big")
        host_call.register(self._number, self._step)

    def reset(self, qpos: jax.Array, qvel: jax.Array) -> base.PhysicsState:
        """qpos: [nq], qvel: [nv]."""
        start = _bits(jnp.concatenate([qpos, qvel]))
        memory = jnp.zeros((self._memory,), jnp.uint32).at[1 : 1 + start.shape[0]].set(start)
        return base.PhysicsState(qpos=qpos, qvel=qvel, xpos=self._root.position(qpos), memory=memory)

    def step(self, state: base.PhysicsState, control: jax.Array) -> base.PhysicsState:
        """control: [nu], held for one environment step."""
        nq, nv = self.mj_model.nq, self.mj_model.nv
        packed = jnp.concatenate([state.memory, _bits(control)])
        out = host_call.call(self._number, packed, self._memory + nq + nv + 3)
        memory, numbers = out[: self._memory], lax.bitcast_convert_type(out[self._memory :], jnp.float32)
        return base.PhysicsState(qpos=numbers[:nq], qvel=numbers[nq : nq + nv], xpos=numbers[nq + nv :], memory=memory)

    def _step(self, packed: np.ndarray, out: np.ndarray) -> None:
        """Host side. packed, out: [rows, words]."""
        nq, nv, saved = self.mj_model.nq, self.mj_model.nv, self._saved
        count = packed.shape[0]
        before = np.empty((count, saved))
        before[:] = np.ascontiguousarray(packed[:, 1 : self._memory]).view(np.float64)
        fresh = packed[:, 0] == 0
        if fresh.any():
            before[fresh, nq + nv :] = 0.0
            before[fresh, : nq + nv] = np.ascontiguousarray(packed[fresh, 1 : 1 + nq + nv]).view(np.float32)
        control = np.ascontiguousarray(packed[:, self._memory :]).view(np.float32).astype(np.float64)
        after = np.empty((count, saved))
        xpos = np.zeros((count, 3))

        self._advance(before, control, after, xpos)

        out[:, 0] = 1
        out[:, 1 : self._memory] = after.view(np.uint32)
        numbers = np.concatenate([after[:, : nq + nv], xpos], axis=1).astype(np.float32)
        out[:, self._memory :] = numbers.view(np.uint32)

    def _advance_by_rollout(self, before, control, after, xpos) -> None:
        """Steps every row from a cold solver: rollout does not give its warm start back."""
        del xpos  # Not to be had from a rollout.
        physical = self.mj_model.nq + self.mj_model.nv
        rows = before.shape[0]
        start = np.zeros((rows, 1 + physical))  # time, qpos, qvel
        start[:, 1:] = before[:, :physical]
        held = np.repeat(control[:, None], self._frame_skip, axis=1)
        path = np.empty((rows, self._frame_skip, 1 + physical))
        with self._borrow_data() as data:
            self._rollout.rollout(
                [self.mj_model] * rows, [data], start, held, nstep=self._frame_skip, state=path, skip_checks=True
            )
        after[:, :physical] = path[:, -1, 1:]
        after[:, physical:] = 0.0

    def _advance_by_steps(self, before, control, after, xpos) -> None:
        """Steps every row, warm start carried, and reads the base body's frame."""
        loaded = np.concatenate([before, control], axis=1)
        with self._borrow_data() as data:
            model, frame_skip, position = self.mj_model, self._frame_skip, data.xpos[self._base]
            for row in range(before.shape[0]):
                mujoco.mj_setState(model, data, loaded[row], _LOADED)
                mujoco.mj_step(model, data, frame_skip)
                mujoco.mj_getState(model, data, after[row], _SAVED)
                xpos[row] = position

    @contextlib.contextmanager
    def _borrow_data(self) -> Iterator[mujoco.MjData]:
        """Scratch space of the engine; devices call at the same time, so there is one for each call under way."""
        try:
            data = self._idle.pop()
        except IndexError:
            data = mujoco.MjData(self.mj_model)
        yield data
        self._idle.append(data)


def _bits(numbers: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(numbers.astype(jnp.float32), jnp.uint32)
