"""MuJoCo's C engine as part of a compiled CPU program: steps run without Python and without the GIL.

XLA calls a handler registered through its foreign function interface (FFI). Numba compiles the handler, which calls the
MuJoCo library that the Python package `mujoco` has loaded. A Python handler would work too, but threads that step in
parallel would compete for the GIL, which nearly stops them on a machine that is busy with other work.

Compiled programs outlive the process in JAX's cache, so they must not contain addresses. They refer to a model by a
number, and the handler looks it up in a table whose address the linker resolves by name.
"""

import atexit
import contextlib
import copy
import functools
import os
import pathlib
import threading

import jax
import jax.numpy as jnp
import llvmlite.binding
import mujoco
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from traces_jax.physics import foreign

_TARGET = "traces_jax_engine"
_TABLE_NAME = "traces_jax_engine_table"
_CAPACITY = 256
_LIBRARIES = ("libmujoco.so*", "libmujoco*.dylib", "mujoco.dll")

_WORD = ir.IntType(64)

# The handler's data of a model. Addresses are int64.
_MODEL = np.dtype(
    [
        ("model", np.int64),
        ("nq", np.int64),
        ("nv", np.int64),
        ("nu", np.int64),
        ("nsensordata", np.int64),
        ("bodies", np.int64),
        ("base", np.int64),
        ("senses", np.int64),
        ("drag", np.float64),
        ("mass", np.int64),
        ("inertia", np.int64),
        ("workspaces", np.int64),
        ("workspace_count", np.int64),
    ]
)
# The engine's workspace for one active call, and the addresses of its arrays. `busy` comes first, so that its address
# is that of the workspace.
_WORKSPACE = np.dtype(
    [
        ("busy", np.int64),
        ("data", np.int64),
        ("qpos", np.int64),
        ("qvel", np.int64),
        ("warm_start", np.int64),
        ("control", np.int64),
        ("xpos", np.int64),
        ("ximat", np.int64),
        ("wrench", np.int64),
        ("sensordata", np.int64),
        ("velocity", np.int64),
    ]
)
_WORKSPACE_BYTES = _WORKSPACE.itemsize
_ENTRY = np.dtype([("number", np.int64), ("model", np.int64)])

_BODY = int(mujoco.mjtObj.mjOBJ_BODY)
_mj_step = types.ExternalFunction("mj_step", types.void(types.int64, types.int64))
_mj_step1 = types.ExternalFunction("mj_step1", types.void(types.int64, types.int64))
_mj_step2 = types.ExternalFunction("mj_step2", types.void(types.int64, types.int64))
_mj_forward = types.ExternalFunction("mj_forward", types.void(types.int64, types.int64))
_mj_object_velocity = types.ExternalFunction(
    "mj_objectVelocity",
    types.void(types.int64, types.int64, types.int32, types.int32, types.int64, types.int32),
)

# Entries are only added, never removed. The objects behind the addresses are kept alive separately.
_table = np.zeros(_CAPACITY, _ENTRY)
_kept: dict[int, tuple] = {}
_adding = threading.Lock()


def register(number: int, mj_model: mujoco.MjModel, *, base: int, drag: float, senses: bool) -> None:
    """Registers a model under `number`, so that compiled programs can step it.

    The number is part of compiled programs that other processes may load from a cache, so it must identify all
    arguments. base: body whose position is reported. drag: see `base.Model`. senses: whether sensors are evaluated
    after the last step.
    """
    with _adding:
        if number in _kept:
            return
        if len(_kept) == _CAPACITY:
            raise RuntimeError(f"a process can hold {_CAPACITY} different models, and it does already")
        _register_target()
        # The number identifies the model as it is now; the caller may modify its own later.
        mj_model = copy.copy(mj_model)
        # Devices call in parallel, and a device may have more than one active call.
        datas = [mujoco.MjData(mj_model) for _ in range(2 * (os.cpu_count() or 1))]
        velocities = np.zeros((len(datas), 6))
        workspaces = np.zeros(len(datas), _WORKSPACE)
        for workspace, data, velocity in zip(workspaces, datas, velocities, strict=True):
            arrays = {
                "qpos": data.qpos,
                "qvel": data.qvel,
                "warm_start": data.qacc_warmstart,
                "control": data.ctrl,
                "xpos": data.xpos,
                "ximat": data.ximat,
                "wrench": data.xfrc_applied,
                "sensordata": data.sensordata,
                "velocity": velocity,
            }
            workspace["data"] = data._address
            for name, array in arrays.items():
                workspace[name] = array.ctypes.data
        model = np.zeros(1, _MODEL)
        values = {
            "model": mj_model._address,
            "nq": mj_model.nq,
            "nv": mj_model.nv,
            "nu": mj_model.nu,
            "nsensordata": mj_model.nsensordata,
            "bodies": mj_model.nbody,
            "base": base,
            "senses": senses,
            "drag": drag,
            "mass": mj_model.body_mass.ctypes.data,
            "inertia": mj_model.body_inertia.ctypes.data,
            "workspaces": workspaces.ctypes.data,
            "workspace_count": len(workspaces),
        }
        for name, value in values.items():
            model[name] = value
        _table[len(_kept)] = (number, model.ctypes.data)
        _kept[number] = (mj_model, datas, velocities, workspaces, model)


def call(number: int, words: jax.Array, *, substeps: int, result_size: int) -> jax.Array:
    """Steps model `number`; under vmap, all rows in one call.

    words: [2 nq + 4 nv + 1 + nu] uint32: the engine's float64 state (qpos, qvel, solver's warm start) as pairs of
    words, a word that is 0 while qpos and qvel are still float32 bits at the front of the state, float32 control.
    substeps: steps of the engine; 0 only evaluates the sensors.
    Returns [result_size]: state and the word 1, then float32 qpos, qvel, position of the base and sensors, if any.
    """
    result = jax.ShapeDtypeStruct((result_size,), jnp.uint32)
    function = jax.ffi.ffi_call(_TARGET, result, vmap_method="broadcast_all")
    return function(words, number=np.int64(number), substeps=np.int64(substeps))


@functools.cache
def _register_target() -> None:
    folder = pathlib.Path(mujoco.__file__).parent
    found = [path for pattern in _LIBRARIES for path in sorted(folder.glob(pattern))]
    if not found:
        raise RuntimeError(f"the mujoco package in {folder} has none of the libraries {', '.join(_LIBRARIES)}")
    llvmlite.binding.load_library_permanently(str(found[0]))
    llvmlite.binding.add_symbol(_TABLE_NAME, _table.ctypes.data)
    foreign.register(_TARGET, _handle)
    atexit.register(_wait_for_programs)


def _wait_for_programs() -> None:
    """Waits at exit: a program still running when Python shuts down would step models that are already freed."""
    for array in jax.live_arrays():
        # Failures have been reported already.
        with contextlib.suppress(Exception):
            array.block_until_ready()


@intrinsic
def _table_address(_):
    """The address of the table, resolved at link time, so that the code can be cached."""

    def generate(context, builder, signature, arguments):
        table = builder.module.globals.get(_TABLE_NAME)
        if table is None:
            table = ir.GlobalVariable(builder.module, _WORD, _TABLE_NAME)
            table.linkage = "external"
        return builder.ptrtoint(table, _WORD)

    return types.int64(), generate


@intrinsic
def _claim(_, address):
    """Atomically sets the word at the address from 0 to 1. Returns whether it was 0."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _WORD.as_pointer())
        pair = builder.cmpxchg(place, ir.Constant(_WORD, 0), ir.Constant(_WORD, 1), "acq_rel", "monotonic")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64), generate


@intrinsic
def _release(_, address):
    """Sets the word at the address to 0, with release semantics."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(ir.Constant(_WORD, 0), place, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@numba.njit
def _find(number):
    """The address of a model, 0 if there is none."""
    table = foreign.array(_table_address(), _CAPACITY, _ENTRY)
    for index in range(_CAPACITY):
        if table[index].model != 0 and table[index].number == number:
            return table[index].model
    return 0


@numba.njit
def _borrow(model):
    """The address of a free workspace, which is claimed; waits for one if necessary."""
    while True:
        for index in range(model.workspace_count):
            address = model.workspaces + index * _WORKSPACE_BYTES
            if _claim(address):
                return address


@numba.njit
def _apply_drag(model, workspace):
    """Applies drag to every body: mass or inertia times drag * velocity * (1 + |velocity|)."""
    mass = foreign.array(model.mass, model.bodies, np.float64)
    inertia = foreign.array(model.inertia, 3 * model.bodies, np.float64)
    turn = foreign.array(workspace.ximat, 9 * model.bodies, np.float64)
    wrench = foreign.array(workspace.wrench, 6 * model.bodies, np.float64)
    velocity = foreign.array(
        workspace.velocity, 6, np.float64
    )  # angular, then linear, of the centre of mass, in the world
    for body in range(1, model.bodies):
        _mj_object_velocity(model.model, workspace.data, _BODY, body, workspace.velocity, 0)
        spin = np.sqrt(velocity[0] ** 2 + velocity[1] ** 2 + velocity[2] ** 2)
        speed = np.sqrt(velocity[3] ** 2 + velocity[4] ** 2 + velocity[5] ** 2)
        for axis in range(3):
            wrench[6 * body + axis] = -model.drag * mass[body] * (1.0 + speed) * velocity[3 + axis]
            wrench[6 * body + 3 + axis] = 0.0
        for principal in range(3):
            rate = 0.0
            for axis in range(3):
                rate += turn[9 * body + 3 * axis + principal] * velocity[axis]
            torque = -model.drag * inertia[3 * body + principal] * (1.0 + spin) * rate
            for axis in range(3):
                wrench[6 * body + 3 + axis] += turn[9 * body + 3 * axis + principal] * torque


@numba.njit
def _advance(model, workspace, substeps):
    for _ in range(substeps):
        if model.drag > 0.0:
            _mj_step1(model.model, workspace.data)
            _apply_drag(model, workspace)
            _mj_step2(model.model, workspace.data)
        else:
            _mj_step(model.model, workspace.data)
    if model.senses != 0:
        _mj_forward(model.model, workspace.data)


@numba.njit
def _copy(source, source_start, target, target_start, count):
    """Copies element by element, converting types; compiles much faster than slices."""
    for index in range(count):
        target[target_start + index] = source[source_start + index]


@numba.njit
def _step_row(model, workspace, substeps, words, numbers, start, out_words, out_numbers, out_start):
    """One environment, whose row starts at `start`. words, numbers: the same memory as uint32 and as float32."""
    nq, nv = model.nq, model.nv
    qpos, qvel = foreign.array(workspace.qpos, nq, np.float64), foreign.array(workspace.qvel, nv, np.float64)
    warm_start = foreign.array(workspace.warm_start, nv, np.float64)
    # The same as uint32 words, to copy the float64 state bit by bit without alignment.
    qpos_words, qvel_words = (
        foreign.array(workspace.qpos, 2 * nq, np.uint32),
        foreign.array(workspace.qvel, 2 * nv, np.uint32),
    )
    warm_start_words = foreign.array(workspace.warm_start, 2 * nv, np.uint32)
    mark = 2 * nq + 4 * nv
    if words[start + mark] == 0:
        _copy(numbers, start, qpos, 0, nq)
        _copy(numbers, start + nq, qvel, 0, nv)
        for index in range(nv):
            warm_start[index] = 0.0
    else:
        _copy(words, start, qpos_words, 0, 2 * nq)
        _copy(words, start + 2 * nq, qvel_words, 0, 2 * nv)
        _copy(words, start + 2 * nq + 2 * nv, warm_start_words, 0, 2 * nv)
    _copy(numbers, start + mark + 1, foreign.array(workspace.control, model.nu, np.float64), 0, model.nu)

    _advance(model, workspace, substeps)

    _copy(qpos_words, 0, out_words, out_start, 2 * nq)
    _copy(qvel_words, 0, out_words, out_start + 2 * nq, 2 * nv)
    _copy(warm_start_words, 0, out_words, out_start + 2 * nq + 2 * nv, 2 * nv)
    out_words[out_start + mark] = 1
    front = out_start + mark + 1
    _copy(qpos, 0, out_numbers, front, nq)
    _copy(qvel, 0, out_numbers, front + nq, nv)
    front += nq + nv
    _copy(foreign.array(workspace.xpos, 3 * model.bodies, np.float64), 3 * model.base, out_numbers, front, 3)
    if model.senses != 0:
        _copy(
            foreign.array(workspace.sensordata, model.nsensordata, np.float64),
            0,
            out_numbers,
            front + 3,
            model.nsensordata,
        )


def _handle(frame_address):
    """The XLA FFI handler."""
    if foreign.asks_version(frame_address):
        return 0
    number, substeps = foreign.attribute(frame_address, 0), foreign.attribute(frame_address, 1)
    source, rows, width = foreign.argument(frame_address, 0)
    target, _, out_width = foreign.result(frame_address, 0)
    words, numbers = foreign.array(source, rows * width, np.uint32), foreign.array(source, rows * width, np.float32)
    out_words = foreign.array(target, rows * out_width, np.uint32)
    out_numbers = foreign.array(target, rows * out_width, np.float32)
    address = _find(number)
    if address == 0:
        # A program is traced with its model registered. One loaded from elsewhere gets NaN states.
        for index in range(rows * out_width):
            out_numbers[index] = np.nan
        return 0
    model = foreign.array(address, 1, _MODEL)[0]
    borrowed = _borrow(model)
    workspace = foreign.array(borrowed, 1, _WORKSPACE)[0]
    for row in range(rows):
        start, out_start = row * width, row * out_width
        _step_row(model, workspace, substeps, words, numbers, start, out_words, out_numbers, out_start)
    _release(borrowed)
    return 0
