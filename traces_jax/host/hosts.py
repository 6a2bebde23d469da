"""Several processes that run one program together, usually one on each host: see docs/accelerators.md.

All call the same compiled programs in the same order, each on its own devices. The first one alone writes the files
that exist once, and prints. Whatever decides what is called next must be the same everywhere: `told`, `anywhere`.
"""

import contextlib
import ctypes
import functools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numba
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numba import types

from traces_jax.host import cli, errors

# Where no cluster tells JAX, these do.
_ADDRESS, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
# Seconds that an orderly end may take.
_ENDING = 60
_ALONE = (
    "traces_jax: another process of this run has ended or cannot be reached; the same command, in every process, "
    "resumes from the last checkpoint."
)
# What the system may call as long as the process lives.
_KEPT: list[object] = []
# Bytes of a message of the first process.
_MESSAGE = 4096


def join(wanted: bool | None, environment: Mapping[str, str] = os.environ) -> None:
    """Joins the other processes of the run. Must run before JAX's devices are used.

    wanted: None if the environment decides.
    """
    if wanted is False or (wanted is None and not _several(environment)):
        return
    # Signals are ours: the loop agrees on them with the other processes.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    place = {"num_processes": _number(environment, _COUNT), "process_id": _number(environment, _INDEX)}
    try:
        jax.distributed.initialize(environment.get(_ADDRESS), **place, shutdown_timeout_seconds=_ENDING)
    except (ValueError, RuntimeError) as error:
        raise errors.UserError(
            f"--distributed is not possible here ({cli.one_line(error).rstrip('.')}): on SLURM, use srun "
            f"for every process; elsewhere, set {_ADDRESS} (host:port of the first process), {_COUNT} and {_INDEX}."
        ) from None
    _speak_when_aborted()
    if not first():
        # One voice is enough. Errors are still printed by everyone.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  as long as the process


def _several(environment: Mapping[str, str]) -> bool:
    """Whether SLURM, a TPU pod or the user has started several processes."""
    in_a_step = "SLURM_STEP_NODELIST" in environment and environment.get("SLURM_NTASKS", "1") != "1"
    return in_a_step or "," in environment.get("TPU_WORKER_HOSTNAMES", "") or _COUNT in environment


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is not None and not (text.isascii() and text.isdigit()):
        raise errors.UserError(f"{name}={text!r} is not right: it must be a whole number.")
    return None if text is None else int(text)


def together() -> bool:
    """Whether this process is one of several."""
    return jax.process_count() > 1


def first() -> bool:
    """Whether this process writes the files that exist once. A process alone is the first."""
    return jax.process_index() == 0


def meet(mesh: Mesh) -> None:
    """Connects the devices of all processes, along every axis that the program gathers along.

    Collectives between CPUs wait only 30 s for each other to connect, less than compiling may take.
    """
    if together():
        for axis, size in mesh.shape.items():
            sharding = NamedSharding(mesh, PartitionSpec(axis))
            values(jax.make_array_from_callback((size,), sharding, lambda index: np.zeros(1, np.float32)))


def told(function: Callable[[], str | None]) -> str | None:
    """What the function returns in the first process, the only one that calls it. If it refuses, all refuse."""
    if not together():
        return function()
    said: dict[str, str | None] = {}
    if first():
        try:
            said["answer"] = function()
        except errors.UserError as error:
            said["refusal"] = str(error)[: _MESSAGE // 8]
    message = np.frombuffer(json.dumps(said).encode().ljust(_MESSAGE), np.uint8)
    said = json.loads(bytes(multihost_utils.broadcast_one_to_all(message)))
    if "refusal" in said:
        raise errors.UserError(str(said["refusal"]))
    return said["answer"]


def anywhere(condition: bool) -> bool:
    """Whether the condition holds in any process."""
    return bool(multihost_utils.process_allgather(np.asarray(condition)).any()) if together() else condition


def values(tree: Any) -> Any:
    """The arrays of a tree in this host's memory, with the parts of all processes."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    if all(leaf.is_fully_addressable for leaf in leaves):
        return jax.device_get(tree)
    return jax.device_get(_gather(leaves[0].sharding.mesh)(tree))  # type: ignore[attr-defined]


@functools.cache
def _gather(mesh: Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))


@contextlib.contextmanager
def ending_with_the_others() -> Iterator[None]:
    """If another process of the run is gone, this one says so and ends at once, like one that is killed.

    An orderly end would wait for the other process: at the next save, and when JAX shuts down.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not together():
            raise
        sys.stdout.flush()
        print(f"{cli.one_line(error)[:160]}\n{_ALONE}", file=sys.stderr, flush=True)
        os._exit(cli.STOPPED)


def _speak_when_aborted() -> None:
    """Says the same where JAX notices first that another process is gone: it then aborts this one."""
    text = ctypes.create_string_buffer(f"{_ALONE}\n".encode())
    address, size, code = ctypes.addressof(text), len(text.value), cli.STOPPED
    write = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
    leave = types.ExternalFunction("_exit", types.void(types.int32))

    # Compiled, because Python cannot run in a thread of JAX that is aborting.
    @numba.cfunc(types.void(types.int32))
    def handle(number):
        write(2, address, size)
        leave(code)

    _KEPT.extend((text, handle))
    ctypes.CDLL(None).signal(int(signal.SIGABRT), ctypes.c_void_p(handle.address))
