"""Access to XLA's foreign function interface (FFI) for handlers compiled by Numba.

A handler is a function of one address, that of XLA's call frame. It returns 0, a null pointer, which means no error.
The frame's layout is that of `xla/ffi/api/c_api.h` in jaxlib, version 0.x.
"""

from collections.abc import Callable

import jax
import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

_MAJOR_VERSION, _MINOR_VERSION = 0, 3
_METADATA_EXTENSION = 1
_FRAME = np.dtype(
    [
        ("size", np.int64),
        ("extension", np.int64),
        ("api", np.int64),
        ("context", np.int64),
        ("stage", np.int64),
        ("argument_header", np.int64, (4,)),
        ("arguments", np.int64),
        ("result_header", np.int64, (4,)),
        ("results", np.int64),
        ("attribute_header", np.int64, (5,)),
        ("attributes", np.int64),
    ]
)
_EXTENSION = np.dtype(
    [("size", np.int64), ("type", np.int32), ("padding", np.int32), ("next", np.int64), ("metadata", np.int64)]
)
_METADATA = np.dtype(
    [
        ("size", np.int64),
        ("version_size", np.int64),
        ("version_extension", np.int64),
        ("major", np.int32),
        ("minor", np.int32),
    ]
)
_BUFFER = np.dtype(
    [
        ("size", np.int64),
        ("extension", np.int64),
        ("type", np.int64),
        ("data", np.int64),
        ("rank", np.int64),
        ("dims", np.int64),
    ]
)
_SCALAR = np.dtype([("type", np.int64), ("value", np.int64)])


def register(target: str, handler: Callable) -> None:
    """Registers a handler by name for compiled CPU programs. Its machine code is cached between processes."""
    compiled = numba.cfunc("int64(int64)", cache=True)(handler)
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(compiled.ctypes), platform="cpu")


@intrinsic
def _pointer(_, address):
    """An address as a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@numba.njit
def array(address, count, dtype):
    """The array at an address, [count]."""
    return carray(_pointer(address), (count,), dtype)


@numba.njit
def asks_version(frame_address):
    """Whether this call only queries the handler's FFI version; if so, writes the version.

    XLA refuses an unknown version.
    """
    frame = array(frame_address, 1, _FRAME)[0]
    if frame.extension == 0:
        return False
    extension = array(frame.extension, 1, _EXTENSION)[0]
    if extension.type != _METADATA_EXTENSION:
        return False
    metadata = array(extension.metadata, 1, _METADATA)
    metadata[0].major = _MAJOR_VERSION
    metadata[0].minor = _MINOR_VERSION
    return True


@numba.njit
def attribute(frame_address, index):
    """An int64 attribute; XLA sorts attributes by name."""
    frame = array(frame_address, 1, _FRAME)[0]
    scalar = array(array(frame.attributes, index + 1, np.int64)[index], 1, _SCALAR)[0]
    return array(scalar.value, 1, np.int64)[0]


@numba.njit
def argument(frame_address, index):
    """The address of an argument's data, its rows, and the elements in a row."""
    return _buffer(array(frame_address, 1, _FRAME)[0].arguments, index)


@numba.njit
def result(frame_address, index):
    """The address of a result's data, its rows, and the elements in a row."""
    return _buffer(array(frame_address, 1, _FRAME)[0].results, index)


@numba.njit
def _buffer(list_address, index):
    buffer = array(array(list_address, index + 1, np.int64)[index], 1, _BUFFER)[0]
    if buffer.rank == 0:
        return buffer.data, 1, 1
    dims = array(buffer.dims, buffer.rank, np.int64)
    rows = 1
    for axis in range(buffer.rank - 1):
        rows *= dims[axis]
    return buffer.data, rows, dims[buffer.rank - 1]
