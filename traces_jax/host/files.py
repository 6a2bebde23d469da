"""Atomic writes of files and folders. Failed writes raise a one-sentence error."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np

from traces_jax.host import errors

# Maximum bytes of a JSON file that is read; ours have a few thousand.
_LARGEST = 1 << 24
# Temporary names: the final name, the host, the process.
_TEMPORARY = re.compile(r"\..*@(?P<host>.*)\.(?P<process>\d+)\.tmp")


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Converts an OSError while writing a file into a WriteError."""
    try:
        yield
    except OSError as error:
        raise errors.WriteError(f"{path} cannot be written: {error.strerror or error}.") from None


def check_can_write(path: pathlib.Path) -> None:
    """Raises a WriteError if nothing can be created at `path`, before any work is done for it.

    It tries to write, because permission bits are not reliable, least of all for root.
    """
    with writing(path):
        there = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
        tried = there / temporary_path(path).name
        tried.mkdir(exist_ok=True)
        tried.rmdir()


@contextlib.contextmanager
def beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary file that is renamed to `path` on success and removed otherwise."""
    temporary = temporary_path(path)
    try:
        with writing(path):
            _remove_leftovers(path)
            # Removed first: an existing link of this name could point outside the folder.
            temporary.unlink(missing_ok=True)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            yield temporary
            temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


def temporary_path(path: pathlib.Path) -> pathlib.Path:
    """The temporary name for `path`. It contains the process id, so that two processes never share one."""
    return path.with_name(f".{path.name}@{socket.gethostname()}.{os.getpid()}.tmp")


def is_temporary(name: str) -> bool:
    """Whether a name is temporary: still being written, or left behind by a killed process."""
    return _TEMPORARY.fullmatch(name) is not None


def _remove_leftovers(path: pathlib.Path) -> None:
    """Removes temporary files for `path` of dead processes on this host. Those of other hosts may still be in use."""
    for other in path.parent.iterdir():
        found = _TEMPORARY.fullmatch(other.name)
        if found is None or not other.name.startswith(f".{path.name}@") or found["host"] != socket.gethostname():
            continue
        try:
            os.kill(int(found["process"]), 0)
        except ProcessLookupError:
            remove(other)
        except (PermissionError, OverflowError):
            continue


def remove(path: pathlib.Path) -> None:
    """Removes a file, a link or a folder with its contents, if possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary folder that replaces `path` on success and is removed otherwise."""
    path = path.resolve()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        work = temporary_path(path)
        remove(work)
        new, old = work / "new", work / "old"
        try:
            new.mkdir(parents=True)
            yield new
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        finally:
            remove(work)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text file."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: pathlib.Path, data: bytes) -> None:
    """Writes a binary file."""
    with beside(path) as temporary:
        temporary.write_bytes(data)


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file."""
    try:
        # Opening a pipe would wait for somebody to write into it.
        if not path.is_file() or path.stat().st_size > _LARGEST:
            raise errors.UserError(f"{path} is damaged: it is no file of at most {_LARGEST >> 20} MB.")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise errors.UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise errors.UserError(f"{path} is damaged: {' '.join(str(error).split())[:160]}.") from None


def write_arrays(path: pathlib.Path, **arrays: np.ndarray) -> None:
    """Writes an npz file."""
    with beside(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
