"""Commands that read arrays from one npz file and write others to a second: their flags, checks and sentences."""

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

# What the arrays of a packed file may unpack to. Those of others are as large as the file, whatever that is.
_UNPACKED_BYTES = 1 << 28
# More than NumPy's longest header.
_HEADER_BYTES = 1 << 14
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# What NumPy raises for a header that is none: it reads it as Python.
_NO_HEADER = (*archives.BROKEN, SyntaxError, tokenize.TokenError)


class HasShape(Protocol):
    """An array, in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def given(flag: flags.FlagHolder[str | None], example: str) -> str:
    """The value of a flag that must be there."""
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
    """The error for an --out that took long to make, and that nobody has asked to replace."""
    return errors.UserError(f"--out={path} exists; choose another, or replace it with --overwrite.")


def read(path: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """All arrays of the npz file that the flag `name` gives; its main array has the same name."""
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
    """The array in a member. Its header is compared with the bytes that are there, so that it cannot ask for others."""
    header = io.BytesIO(content[:_HEADER_BYTES])
    try:
        with warnings.catch_warnings():
            # About headers that Python 2 wrote, or that are none.
            warnings.simplefilter("ignore")
            shape, fortran, dtype = _HEADERS[np.lib.format.read_magic(header)](header)
    except _NO_HEADER:
        raise archives.ArchiveError(f"holds {archives.short(name)}, which is no array") from None
    if dtype.hasobject:
        raise archives.ArchiveError(f"holds {archives.short(name)}, an array of Python's objects")
    try:
        values = np.ndarray(shape, dtype, content, header.tell(), order="F" if fortran else "C")
    except (ValueError, TypeError, OverflowError):
        values = None
    # Items without bytes would make an array of any length out of nothing.
    if values is None or not dtype.itemsize or values.nbytes != len(content) - header.tell():
        raise archives.ArchiveError(f"is damaged: {archives.short(name)} has not the size that it declares")
    return values


def numbers(path: pathlib.Path, name: str, array: np.ndarray, first: int = 0, largest: float = math.inf) -> np.ndarray:
    """The array as float32, if it holds finite real numbers.

    first: its place in the array of the file. largest: what no number may exceed.
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
