"""MuJoCo's C engine, called from inside jit: the fast room on CPUs.

Every environment step is one `jax.pure_callback` for all environments of all lanes on a device
(`vmap_method="broadcast_all"`). The engine works in float64; its exact state travels through the float32 program as
raw bits in `PhysicsState.memory`, so nothing is lost between steps and a resumed run is bit-exact.

A callback costs about 70 microseconds for each array that crosses it, so one packed array goes in and one comes out:

  in   memory, then the control's float32 bits
  out  memory, then the float32 bits of qpos, qvel and xpos
  memory = [fresh or not] + the engine's float64 state as pairs of words; after a reset, qpos and qvel as float32 bits
"""

import collections
import concurrent.futures
import os

import jax
import jax.numpy as jnp
import mujoco
import mujoco.rollout
import numpy as np
from jax import lax

from traces_jax.physics import base

# mj_getState and mj_setState lay the parts out in this order.
_SAVED = mujoco.mjtState.mjSTATE_QPOS | mujoco.mjtState.mjSTATE_QVEL | mujoco.mjtState.mjSTATE_WARMSTART
_LOADED = _SAVED | mujoco.mjtState.mjSTATE_CTRL


class NativePhysics:
    """Steps a batch of environments; the engine releases the GIL, so threads share the batch.

    Two ways to step, chosen by what the task reads. `mujoco.rollout` takes a whole batch in one call but returns
    neither body frames nor the solver's warm start. A model that `reads_frame` is stepped by `mj_step` in a Python
    loop, some five microseconds an environment: a few percent for the models that need it.
    """

    name = "native"

    def __init__(self, model: base.Model, threads: int):
        self.mj_model = model.load()
        if self.mj_model.na:
            raise ValueError(f"{model.path.name} has actuator activations, which physics=native does not carry")
        self.environment_seconds = base.environment_seconds(model, self.mj_model)
        self._frame_skip = model.frame_skip
        self._base = self.mj_model.body(model.base).id
        self._root = base.RootFrame(self.mj_model, model.base)
        self._advance = self._advance_by_steps if model.reads_frame else self._advance_by_rollout
        self._threads = threads
        self._process = 0
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._idle: collections.deque[mujoco.MjData] = collections.deque()
        self._rollout = mujoco.rollout.Rollout(nthread=0)
        nq, nv = self.mj_model.nq, self.mj_model.nv
        self._saved = nq + 2 * nv
        self._memory = 1 + 2 * self._saved

    def reset(self, qpos: jax.Array, qvel: jax.Array) -> base.PhysicsState:
        """qpos: [nq], qvel: [nv]."""
        start = _bits(jnp.concatenate([qpos, qvel]))
        memory = jnp.zeros((self._memory,), jnp.uint32).at[1 : 1 + start.shape[0]].set(start)
        return base.PhysicsState(qpos=qpos, qvel=qvel, xpos=self._root.position(qpos), memory=memory)

    def step(self, state: base.PhysicsState, control: jax.Array) -> base.PhysicsState:
        """control: [nu], held for one environment step."""
        nq, nv = self.mj_model.nq, self.mj_model.nv
        result = jax.ShapeDtypeStruct((self._memory + nq + nv + 3,), jnp.uint32)
        packed = jnp.concatenate([state.memory, _bits(control)])
        out = jax.pure_callback(self._step, result, packed, vmap_method="broadcast_all")
        memory, numbers = out[: self._memory], lax.bitcast_convert_type(out[self._memory :], jnp.float32)
        return base.PhysicsState(
            qpos=numbers[:nq], qvel=numbers[nq : nq + nv], xpos=numbers[nq + nv :], memory=memory
        )

    def _step(self, packed) -> np.ndarray:
        """Host side. packed: [..., words] with any leading batch shape."""
        nq, nv, saved = self.mj_model.nq, self.mj_model.nv, self._saved
        packed = np.asarray(packed)
        batch = packed.shape[:-1]
        packed = packed.reshape(-1, packed.shape[-1])
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

        edges = np.linspace(0, count, min(self._threads, count) + 1).astype(int)
        parts = [slice(*edge) for edge in zip(edges[:-1], edges[1:], strict=True)]
        others = [self._take_pool().submit(self._advance, part, before, control, after, xpos) for part in parts[1:]]
        self._advance(parts[0], before, control, after, xpos)
        for other in others:
            other.result()

        out = np.empty((count, self._memory + nq + nv + 3), np.uint32)
        out[:, 0] = 1
        out[:, 1 : self._memory] = after.view(np.uint32)
        numbers = np.concatenate([after[:, : nq + nv], xpos], axis=1).astype(np.float32)
        out[:, self._memory :] = numbers.view(np.uint32)
        return out.reshape(*batch, -1)

    def _advance_by_rollout(self, part: slice, before, control, after, xpos) -> None:
        """Steps rows `part`, each from a cold solver: rollout does not give its warm start back."""
        del xpos  # Not to be had from a rollout.
        model, physical = self.mj_model, self.mj_model.nq + self.mj_model.nv
        rows = part.stop - part.start
        start = np.zeros((rows, 1 + physical))  # time, qpos, qvel
        start[:, 1:] = before[part, :physical]
        held = np.repeat(control[part, None], self._frame_skip, axis=1)
        path = np.empty((rows, self._frame_skip, 1 + physical))
        data = self._take_data()
        self._rollout.rollout(
            [model] * rows, [data], start, held, nstep=self._frame_skip, state=path, skip_checks=True
        )
        self._idle.append(data)
        after[part, :physical] = path[:, -1, 1:]
        after[part, physical:] = 0.0

    def _advance_by_steps(self, part: slice, before, control, after, xpos) -> None:
        """Steps rows `part`, warm start carried, and reads the base body's frame."""
        data = self._take_data()
        model, frame_skip, position = self.mj_model, self._frame_skip, data.xpos[self._base]
        loaded = np.concatenate([before[part], control[part]], axis=1)
        for row in range(part.start, part.stop):
            mujoco.mj_setState(model, data, loaded[row - part.start], _LOADED)
            mujoco.mj_step(model, data, frame_skip)
            mujoco.mj_getState(model, data, after[row], _SAVED)
            xpos[row] = position
        self._idle.append(data)

    def _take_data(self) -> mujoco.MjData:
        try:
            return self._idle.pop()
        except IndexError:
            return mujoco.MjData(self.mj_model)

    def _take_pool(self) -> concurrent.futures.ThreadPoolExecutor:
        # Threads do not survive a fork; a forked child makes its own.
        if self._pool is None or self._process != os.getpid():
            self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, thread_name_prefix="mujoco")
            self._process = os.getpid()
        return self._pool


def _bits(numbers: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(numbers.astype(jnp.float32), jnp.uint32)
