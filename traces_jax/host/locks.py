"""Locks on files. The system lets go of them when a process dies, so that none is ever left behind."""

import contextlib
import datetime
import fcntl
import os
import pathlib
import socket
from collections.abc import Callable, Iterator

from traces_jax.host import files


@contextlib.contextmanager
def alone(path: pathlib.Path, in_use: Callable[[str], Exception]) -> Iterator[None]:
    """Holds the lock, with this process's name in it. in_use: what to raise, given the name of who holds it."""
    with _opened(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode(errors="replace").strip()
            raise in_use(holder or "another process") from None
        began = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        with files.writing(path):
            os.truncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()} since {began}\n".encode())
        yield


@contextlib.contextmanager
def in_turn(path: pathlib.Path) -> Iterator[None]:
    """Holds the lock, as soon as nobody else does."""
    with _opened(path) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def is_held(path: pathlib.Path) -> bool:
    """Whether a process holds it. Asking keeps nobody out for longer than a moment: those who wait `in_turn` pass."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[int]:
    with files.writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)
