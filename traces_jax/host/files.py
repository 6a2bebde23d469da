"""Files and folders that appear only when they are complete. What cannot be written is said in one sentence."""

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

# Bytes of a JSON file that is read; ours have a few thousand.
_LARGEST = 1 << 24
# The temporary names: what it becomes, the computer, the process.
_TEMPORARY = re.compile(r"\..*@(?P<host>.*)\.(?P<process>\d+)\.tmp")


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Turns what the system says of a file that cannot be written into a sentence."""
    try:
        yield
    except OSError as error:
        raise errors.WriteError(f"{path} cannot be written: {error.strerror or error}.") from None


def check_can_write(path: pathlib.Path) -> None:
    """Refuses a place where nothing can be made, before any work is done for it.

    Tried, not asked: what the system says of rights is not the whole truth, least of all to root.
    """
    with writing(path):
        there = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
        tried = there / temporary_path(path).name
        tried.mkdir(exist_ok=True)
        tried.rmdir()


@contextlib.contextmanager
def beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary file that becomes `path` when all went well and vanishes otherwise."""
    temporary = temporary_path(path)
    try:
        with writing(path):
            _remove_leftovers(path)
            # Made anew: a link that lies there under this name would lead out of the folder.
            temporary.unlink(missing_ok=True)
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            yield temporary
            temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise


def temporary_path(path: pathlib.Path) -> pathlib.Path:
    """Where `path` is made. The process is part of the name: two never write to the same one."""
    return path.with_name(f".{path.name}@{socket.gethostname()}.{os.getpid()}.tmp")


def is_temporary(name: str) -> bool:
    """Whether something of that name was left behind when the process that made it was killed, or is being made."""
    return _TEMPORARY.fullmatch(name) is not None


def _remove_leftovers(path: pathlib.Path) -> None:
    """Removes what killed processes of this computer left behind of `path`. Of others, nobody knows if they live."""
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
    """Removes a file, a link or a folder with all that is in it, if it can."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary folder that becomes `path`, in place of what was there, when all went well and vanishes otherwise."""
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
    """A text file."""
    with beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: pathlib.Path) -> Any:
    """What a JSON file holds."""
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
    """An npz file."""
    with beside(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
