"""Starts a command in several processes that run together."""

import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


def start(
    command: Sequence[str], cores: Sequence[int], environment: Mapping[str, str], **popen: Any
) -> list[subprocess.Popen]:
    """The same command in a process on each of the cores, which run together. popen: arguments of each `Popen`."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    together = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(len(cores))}
    return [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command],
            env={**environment, **together, "JAX_PROCESS_ID": str(index)},
            **popen,
        )
        for index, core in enumerate(cores)
    ]
