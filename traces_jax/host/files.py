"""Files that are either whole or absent."""

import contextlib
import pathlib
import shutil
import tempfile
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


@contextlib.contextmanager
def folder_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary folder that becomes `path`, in place of what was there, when all went well and vanishes otherwise."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        yield new
        if path.exists():
            path.rename(old)
        new.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_text(path: pathlib.Path, text: str) -> None:
    """A text file."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_arrays(path: pathlib.Path, **arrays: np.ndarray) -> None:
    """An npz file."""
    with beside(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
