"""Reads the time inside a compiled CPU program, without a Python callback: programs with callbacks cannot be cached."""

import functools
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numba import types

from traces_jax.physics import foreign

_TARGET = "traces_jax_clock"
_MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 0)
_TIME = np.dtype([("seconds", np.int64), ("nanoseconds", np.int64)])
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))


def find(backend: str) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]] | None:
    """The clock for programs of a backend, or None.

    It is a function of any array of 32-bit numbers. It returns the array and the time in microseconds, uint32 [].
    Computations that use the returned array start after the reading. The time wraps every 71 minutes, and so do
    differences.
    """
    if backend != "cpu" or sys.platform == "win32":
        return None
    _register()
    return read


def read(value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """See `find`."""
    results = (jax.ShapeDtypeStruct(value.shape, value.dtype), jax.ShapeDtypeStruct((), jnp.uint32))
    same, at = jax.ffi.ffi_call(_TARGET, results, vmap_method="broadcast_all")(value)
    return same, at


@functools.cache
def _register() -> None:
    foreign.register(_TARGET, _handle)


def _handle(frame_address):
    """The XLA FFI handler."""
    if foreign.asks_version(frame_address):
        return 0
    source, rows, width = foreign.argument(frame_address, 0)
    target, _, _ = foreign.result(frame_address, 0)
    taken, lanes, last = foreign.result(frame_address, 1)
    given, copy = foreign.array(source, rows * width, np.uint32), foreign.array(target, rows * width, np.uint32)
    for index in range(rows * width):
        copy[index] = given[index]
    now = np.zeros(1, _TIME)
    _clock_gettime(_MONOTONIC, now.ctypes.data)
    microseconds = np.uint32((now[0].seconds * 1_000_000 + now[0].nanoseconds // 1000) & 0xFFFFFFFF)
    times = foreign.array(taken, lanes * last, np.uint32)
    for lane in range(lanes * last):
        times[lane] = microseconds
    return 0
