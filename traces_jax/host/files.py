"""Files that are either whole or absent."""

import contextlib
import pathlib
from collections.abc import Iterator

import numpy as np


@contextlib.contextmanager
def beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary name that becomes `path` when all went well and vanishes otherwise."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: pathlib.Path, text: str) -> None:
    """A text file."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_arrays(path: pathlib.Path, **arrays: np.ndarray) -> None:
    """An npz file."""
    with beside(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
