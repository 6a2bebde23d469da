"""Cores of one's own: a process that computes on as many devices as it has cores should not share them."""

import fcntl
import os
import pathlib
import tempfile
import time

from traces_jax.host import locks

# Between two looks for free cores, seconds.
_PAUSE = 0.2


def pin(count: int) -> None:
    """Keeps this process, and all threads it will start, on cores that no other pinned process has.

    Waits until there are enough. A core is taken by a lock, which the system releases when the process dies.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    folder = pathlib.Path(tempfile.gettempdir()) / f"traces_jax_cores_{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while True:
        # All or none, one process at a time: two that hold a part of what they need would wait for each other.
        with locks.in_turn(folder / "lock"):
            taken = _take(folder, allowed, min(count, len(allowed)))
        if taken:
            os.sched_setaffinity(0, taken)
            return
        time.sleep(_PAUSE)


def _take(folder: pathlib.Path, allowed: list[int], count: int) -> list[int]:
    """So many free cores, or none. Their locks stay open until this process ends."""
    taken: dict[int, int] = {}
    for core in allowed:
        handle = os.open(folder / str(core), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            continue
        taken[core] = handle
        if len(taken) == count:
            return list(taken)
    for handle in taken.values():
        os.close(handle)
    return []
