"""The process of a step: python -m traces_jax.host.study.child PARENT CORES FOLDER MODULE ARGUMENTS...

It waits for its turn and its cores, becomes the command, and writes down how that ended. Whoever started it may be gone
by then: a cluster's job goes on without the study that submitted it.
"""

import contextlib
import ctypes
import os
import pathlib
import runpy
import signal
import sys

from traces_jax.host import cli, locks
from traces_jax.host.study import cores, outcomes

_PR_SET_PDEATHSIG = 1


def main(parent: int, core_count: int, folder: pathlib.Path, module: str, arguments: list[str]) -> int:
    """Runs the command in this process. Returns its exit code."""
    _end_with(parent)
    with locks.in_turn(folder / outcomes.LOCK):
        cores.pin(core_count)
        outcomes.forget(folder)
        code = _run(module, arguments)
        outcomes.write(folder, code)
    return code


def _end_with(parent: int) -> None:
    """Asks the system for Ctrl-C when the parent dies: nobody would restart, or stop, what it leaves behind.

    Shells and Ray make what they start deaf to Ctrl-C; here it counts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # SLURM warns all processes of a job that its time is nearly over. The parent has asked for that, and passes it on.
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != parent:
        raise KeyboardInterrupt


def _run(module: str, arguments: list[str]) -> int:
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else cli.OK if ended.code is None else 1
    return cli.OK


if __name__ == "__main__":
    try:
        ended = main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4], sys.argv[5:])
    except KeyboardInterrupt:
        ended = cli.STOPPED
    sys.exit(ended)
