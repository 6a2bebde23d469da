"""MJX, MuJoCo in JAX: for GPUs and TPUs; pure and differentiable, slow on CPUs."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import mujoco
from jax import lax
from mujoco import mjx
from mujoco.mjx._src import collision_driver, collision_primitive

from traces_jax.physics import base


class MjxPhysics:
    """Steps one environment; use vmap for a batch.

    Only positions, velocities and the solver's warm start are kept between the simulator's steps. The rest of
    `mjx.Data` is rebuilt from a template, which keeps the carries of all loops small.
    """

    name = "mjx"

    def __init__(self, model: base.Model, impl: str = "jax"):
        if impl == "warp" and model.drag:
            raise base.PhysicsError(
                f"mjx.impl='warp' is not right for {model.path.name}: it has no drag; mjx.impl=jax is."
            )
        self.mj_model = model.load()
        self._impl = impl
        self.environment_seconds = base.environment_seconds(model, self.mj_model)
        self._frame_skip = model.frame_skip
        self._drag = model.drag
        self._senses = model.senses
        self._base = self.mj_model.body(model.base).id
        self._root = base.RootFrame(self.mj_model, model.base)
        tuned = _tuned(self.mj_model)
        self._sensing = mjx.put_model(tuned, impl=impl) if model.senses else None
        # Sensors are read after the last step of an environment step only.
        tuned.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_SENSOR
        self._model = mjx.put_model(tuned, impl=impl)
        self._template = self._make_data()

    def reset(self, qpos: jax.Array, qvel: jax.Array, sensors: jax.Array | None = None) -> base.PhysicsState:
        """qpos: [nq], qvel: [nv], sensors: [nsensordata] if known."""
        memory = jnp.zeros((self.mj_model.nv,), jnp.float32)
        if sensors is None:
            sensors = self._sense(self._data(qpos, qvel, memory, jnp.zeros((self.mj_model.nu,))))
        return base.PhysicsState(qpos=qpos, qvel=qvel, xpos=self._root.position(qpos), sensors=sensors, memory=memory)

    def step(self, state: base.PhysicsState, control: jax.Array) -> base.PhysicsState:
        """control: [nu], held for one environment step."""

        def substep(_, before: base.PhysicsState) -> base.PhysicsState:
            data = self._resist(self._data(before.qpos, before.qvel, before.memory, control))
            with _capsule_frames_as_in_c():
                data = mjx.step(self._model, data)
            return dataclasses.replace(
                before, qpos=data.qpos, qvel=data.qvel, xpos=data.xpos[self._base], memory=data.qacc_warmstart
            )

        after = lax.fori_loop(0, self._frame_skip, substep, dataclasses.replace(state, sensors=None))
        data = self._data(after.qpos, after.qvel, after.memory, control)
        return dataclasses.replace(after, sensors=self._sense(data))

    def _make_data(self) -> mjx.Data:
        plain = mjx.make_data(self.mj_model, impl="jax")
        if self._impl == "jax":
            return plain
        # Warp has one array for the contacts of all environments, whose number it has to be told.
        contacts, rows = plain._impl.contact.dist.shape[0], plain._impl.efc_J.shape[0]
        return mjx.make_data(self.mj_model, impl="warp", naconmax=max(contacts, 1) * base.WARP_WORLDS, njmax=rows)

    def _data(self, qpos: jax.Array, qvel: jax.Array, warm_start: jax.Array, control: jax.Array) -> mjx.Data:
        return self._template.replace(qpos=qpos, qvel=qvel, qacc_warmstart=warm_start, ctrl=control)

    def _sense(self, data: mjx.Data) -> jax.Array | None:
        if not self._senses:
            return None
        with _capsule_frames_as_in_c():
            data = mjx.forward(self._sensing, self._resist(data))
        if self._impl == "warp":
            return data.sensordata
        # Without constraints, `mjx.forward` returns before it evaluates acceleration sensors.
        return mjx.sensor_acc(self._sensing, data).sensordata

    def _resist(self, data: mjx.Data) -> mjx.Data:
        """Sets the forces of drag on every body: `base.Model.drag`."""
        if not self._drag:
            return data
        model = self._model
        moved = mjx.com_vel(model, mjx.com_pos(model, mjx.kinematics(model, data)))
        spin = moved.cvel[:, :3]
        # MuJoCo gives linear velocities at the centre of mass of the whole tree.
        arm = moved.xipos - moved.subtree_com[jnp.asarray(model.body_rootid)]
        linear = moved.cvel[:, 3:] + jnp.cross(spin, arm)
        size = lambda vectors: 1.0 + jnp.linalg.norm(vectors, axis=1, keepdims=True)  # noqa: E731
        momentum = model.body_mass[:, None] * linear
        rates = jnp.einsum("bij,bi->bj", moved.ximat, spin)
        angular_momentum = jnp.einsum("bij,bj->bi", moved.ximat, model.body_inertia * rates)
        wrench = jnp.concatenate([momentum * size(linear), angular_momentum * size(spin)], axis=1)
        return data.replace(xfrc_applied=-self._drag * wrench)


def _tuned(mj_model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy with the bounds of the solver's loops that the model states for MJX as custom numbers, if any.

    C leaves these loops when it is done. In a batch, MJX makes every step of a line search for all environments, and
    iterates until the slowest of them is done.
    """
    tuned = copy.copy(mj_model)
    for name in ("iterations", "ls_iterations"):
        found = mujoco.mj_name2id(mj_model, mujoco.mjtObj.mjOBJ_NUMERIC, f"mjx_{name}")
        if found >= 0:
            setattr(tuned.opt, name, int(mj_model.numeric(found).data[0]))
    return tuned


@contextlib.contextmanager
def _capsule_frames_as_in_c() -> Iterator[None]:
    """While a step is traced, capsule-plane contacts get the same tangents as in MuJoCo's C engine.

    MJX uses fixed axes as tangents when a capsule is steeper than 60 degrees. This rotates the friction pyramid: the
    Ant then settles 7 cm lower than in C, in float64 too. MJX has no setting for this, so its table of collision
    functions is patched during tracing and restored.
    """
    table = collision_driver._COLLISION_FUNC
    pair = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_CAPSULE)
    key = next(known for known in table if tuple(map(int, known)) == tuple(map(int, pair)))
    original = table[key]
    table[key] = _plane_capsule
    try:
        yield
    finally:
        table[key] = original


@collision_primitive.collider(ncon=2)
def _plane_capsule(plane, capsule):
    """Contacts of both ends: distance [2], position [2, 3], frame [2, 3, 3]; the first tangent follows the axis."""
    normal, axis = plane.mat[:, 2], capsule.mat[:, 2]
    along = axis - normal * jnp.dot(normal, axis)
    length = jnp.linalg.norm(along)
    # An upright capsule has no direction along the plane; any tangent is valid.
    upright = length < 1e-6
    tangent = jnp.where(upright, jnp.array([0.0, 1.0, 0.0]), along / jnp.where(upright, 1.0, length))
    frame = jnp.stack([normal, tangent, jnp.cross(normal, tangent)])
    ends = capsule.pos + jnp.array([[1.0], [-1.0]]) * axis * capsule.size[1]
    distance = (ends - plane.pos) @ normal - capsule.size[0]
    # A contact lies halfway between the two surfaces.
    position = ends - normal * (capsule.size[0] + 0.5 * distance)[:, None]
    return distance, position, jnp.stack([frame, frame])
