"""Commands that read arrays from one npz file and write others to a second: their flags, checks and sentences."""

import pathlib
import zipfile
import zlib
from typing import Protocol

import numpy as np
from absl import flags

from traces_jax.host import errors, files

# What numpy raises for a missing file, a folder, an .npy file, other content, a cut file, pickled objects.
UNREADABLE = (OSError, TypeError, AttributeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


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


def exists(path: pathlib.Path) -> errors.UserError:
    """The error for an --out that took long to make, and that nobody has asked to replace."""
    return errors.UserError(f"--out={path} exists; choose another, or replace it with --overwrite.")


def read(path: pathlib.Path, name: str) -> dict[str, np.ndarray]:
    """All arrays of the npz file that the flag `name` gives; its main array has the same name."""
    if not path.exists():
        raise errors.UserError(f"--{name}={path} does not exist; give an .npz file with an array {name!r}.")
    try:
        return load(path)
    except UNREADABLE:
        raise errors.UserError(f"--{name}={path} is not a readable .npz file; write it with numpy.savez.") from None


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file, which may turn out to be `UNREADABLE`."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def numbers(path: pathlib.Path, name: str, array: np.ndarray, first: int = 0) -> np.ndarray:
    """The array as float32, if it holds finite real numbers. first: its place in the array of the file."""
    if array.dtype.kind not in "fiu":
        raise errors.UserError(f"{path}: {name} holds {array.dtype.name}; it must hold real numbers.")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(array))
    if wrong.size:
        place = ", ".join(str(index) for index in (first + wrong[0][0], *wrong[0][1:]))
        raise errors.UserError(f"{path}: {name}[{place}] is {array[tuple(wrong[0])]}; all numbers must be finite.")
    return array


def wrong_shape(path: pathlib.Path, name: str, array: HasShape, right: str) -> errors.UserError:
    """The error for an array of another shape than `right`."""
    return errors.UserError(f"{path}: {name} has shape {list(array.shape)}; it must be {right}.")


def save(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes an npz file that appears only when it is complete."""
    try:
        files.write_arrays(path, **arrays)
    except OSError as error:
        raise errors.UserError(f"--out={path} cannot be written: {error.strerror}.") from None
