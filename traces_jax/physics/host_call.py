"""Calling Python on the host from inside a compiled CPU program, through XLA's foreign function interface.

`jax.pure_callback` would do, but it costs 70 microseconds for each array and keeps the program out of JAX's
persistent compilation cache. A registered FFI handler has neither fault. The structures below follow XLA's C
interface (`xla/ffi/api/c_api.h` in jaxlib, version 0.x); a handler checks the version before it reads anything else.
"""

import atexit
import contextlib
import ctypes
import functools
import traceback
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

_TARGET = "traces_jax_host_call"
_MAJOR_VERSION, _MINOR_VERSION = 0, 3
_METADATA_EXTENSION = 1
_INTERNAL_ERROR = 13

# Functions by the number that compiled programs know them by.
_FUNCTIONS: dict[int, Callable[[np.ndarray, np.ndarray], None]] = {}


class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _Metadata(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
        ("state_type_id", ctypes.c_int64),
    ]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class _Buffers(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("items", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    ]


class _Scalar(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("value", ctypes.POINTER(ctypes.c_int64))]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("items", ctypes.POINTER(ctypes.POINTER(_Scalar))),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    ]


_CreateError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))


class _Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("create_error", _CreateError),
    ]


class _CallFrame(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
        ("future", ctypes.c_void_p),
    ]


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))


def register(number: int, function: Callable[[np.ndarray, np.ndarray], None]) -> None:
    """Makes `function(input, output)` callable by compiled programs under `number`.

    The number is part of the compiled program, which may be read back from the cache by another process: it must name
    what the function computes. input, output: [rows, words] uint32; the function fills output.
    """
    _register_target()
    _FUNCTIONS[number] = function


def call(number: int, words: jax.Array, result_size: int) -> jax.Array:
    """Calls the function `number` with words [n]; under vmap, once with all rows. Returns [result_size] uint32."""
    result = jax.ShapeDtypeStruct((result_size,), jnp.uint32)
    return jax.ffi.ffi_call(_TARGET, result, vmap_method="broadcast_all")(words, number=np.int64(number))


@functools.cache
def _register_target() -> None:
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(_handle), platform="cpu")
    atexit.register(_wait_for_programs)


def _wait_for_programs() -> None:
    """A program still running when Python shuts down would call into an interpreter that is no longer there."""
    for array in jax.live_arrays():
        # A program that failed has said so already.
        with contextlib.suppress(Exception):
            array.block_until_ready()


def _rows(buffer: _Buffer) -> np.ndarray:
    """The buffer as [rows, words], without a copy."""
    shape = buffer.dims[: buffer.rank]
    count = int(np.prod(shape, dtype=np.int64))
    words = (ctypes.c_uint32 * count).from_address(buffer.data)
    return np.frombuffer(memoryview(words), np.uint32).reshape(-1, shape[-1])


def _execute(frame: _CallFrame) -> None:
    number = frame.attributes.items[0].contents.value[0]
    _FUNCTIONS[number](_rows(frame.arguments.items[0].contents), _rows(frame.results.items[0].contents))


@_Handler
def _handle(pointer):
    frame = pointer.contents
    if frame.extension and frame.extension.contents.type == _METADATA_EXTENSION:
        # XLA asks which version of the interface this handler speaks; it refuses one it does not know.
        extension = ctypes.cast(frame.extension, ctypes.POINTER(_MetadataExtension)).contents
        extension.metadata.contents.version.major = _MAJOR_VERSION
        extension.metadata.contents.version.minor = _MINOR_VERSION
        return None
    try:
        _execute(frame)
    except Exception:  # noqa: BLE001  an exception must not cross into C++
        message = f"host call failed: {traceback.format_exc()}".encode()
        arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, _INTERNAL_ERROR)
        return frame.api.contents.create_error(ctypes.byref(arguments))
    return None
