"""Reads and checks npz files: flags, validation and error messages of commands with array input and output."""

import io
import math
import pathlib
import tokenize
import warnings
from typing import Protocol

import numpy as np
from absl import flags

from traces_jax.host import errors, files
from traces_jax.host.data import archives

# Maximum unpacked bytes of a compressed file. Arrays of an uncompressed one are as large as the file.
_UNPACKED_BYTES = 1 << 28
# More than NumPy's longest header.
_HEADER_BYTES = 1 << 14
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# Exceptions of NumPy for an invalid header, which it parses as Python.
_NO_HEADER = (*archives.BROKEN, SyntaxError, tokenize.TokenError)


class HasShape(Protocol):
    """An array, in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def given(flag: flags.FlagHolder[str | None], example: str) -> str:
    """The value of a required flag."""
    if not flag.value:
        raise errors.UserError(f"--{flag.name} is missing; give it as in --{flag.name} {example}.")
    return flag.value


def check_out(path: pathlib.Path) -> None:
    """Refuses an --out that cannot be written, before any work is done for it."""
    if path.is_dir() or not path.parent.is_dir():
        problem = "it is a folder" if path.is_dir() else f"folder {str(path.parent)!r} does not exist"
        raise errors.UserError(f"--out={path} cannot be written: {problem}.")
    files.check_can_write(path)


def exists(path: pathlib.Path) -> errors.UserError:
    """The error for an existing --out without --overwrite, for output that takes long to create."""
    return errors.UserError(f"--out={path} exists; choose another, or replace it with --overwrite.")


def read(path: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """All arrays of the npz file given by the flag `name`; its main array has the same name."""
    if not path.exists():
        raise errors.UserError(f"--{name}={path} does not exist; give an .npz file with an array {name!r}.")
    try:
        return load(path)
    except archives.ArchiveError as error:
        raise errors.UserError(
            f"--{name}={path} is not a readable .npz file: it {error}; write it with numpy.savez."
        ) from None


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file, or an `ArchiveError`."""
    with archives.opened(path) as archive:
        archive.check_total(archive.members, max(_UNPACKED_BYTES, archive.size))
        return {name.removesuffix(".npy"): _array(name, archive.read(name)) for name in archive.members}


def _array(name: str, content: bytearray) -> np.ndarray:
    """The array in a member. Its header is checked against the bytes present, so that it cannot claim more."""
    header = io.BytesIO(content[:_HEADER_BYTES])
    try:
        with warnings.catch_warnings():
            # Warnings about headers from Python 2, or invalid ones.
            warnings.simplefilter("ignore")
            shape, fortran, dtype = _HEADERS[np.lib.format.read_magic(header)](header)
    except _NO_HEADER:
        raise archives.ArchiveError(f"holds {archives.short(name)}, which is not an array") from None
    if dtype.hasobject:
        raise archives.ArchiveError(f"holds {archives.short(name)}, an array of Python objects")
    try:
        values = np.ndarray(shape, dtype, content, header.tell(), order="F" if fortran else "C")
    except (ValueError, TypeError, OverflowError):
        values = None
    # Items of zero bytes would allow an array of any length.
    if values is None or not dtype.itemsize or values.nbytes != len(content) - header.tell():
        raise archives.ArchiveError(f"is damaged: {archives.short(name)} does not have the size that it declares")
    return values


def numbers(path: pathlib.Path, name: str, array: np.ndarray, first: int = 0, largest: float = math.inf) -> np.ndarray:
    """The array as float32, if it holds finite real numbers.

    first: index of its first row in the file's array. largest: upper bound of all numbers.
    """
    if array.dtype.kind not in "fiu":
        raise errors.UserError(f"{path}: {name} holds {array.dtype.name}; it must hold real numbers.")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(array) | (np.abs(array) > largest))
    if wrong.size:
        place = ", ".join(str(index) for index in (first + wrong[0][0], *wrong[0][1:]))
        right = "finite" if math.isinf(largest) else f"finite and at most {largest:g}"
        raise errors.UserError(f"{path}: {name}[{place}] is {array[tuple(wrong[0])]:g}; all numbers must be {right}.")
    return array


def wrong_shape(path: pathlib.Path, name: str, array: HasShape, right: str) -> errors.UserError:
    """The error for an array of another shape than `right`."""
    return errors.UserError(f"{path}: {name} has shape {list(array.shape)}; it must be {right}.")
