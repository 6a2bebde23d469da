"""Steps as processes of this machine, each pinned to cores of its own."""

import signal
import subprocess

from traces_jax.host.study.engines import base
from traces_jax.host.study.engines.base import Job


class Local:
    """Processes that end with this one."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen] = {}

    def start(self, job: Job) -> None:
        self._children[job.step.name] = base.start(job)

    def ended(self) -> dict[str, int]:
        found = {name: code for name, child in self._children.items() if (code := child.poll()) is not None}
        for name in found:
            del self._children[name]
        return found

    def stop(self) -> None:
        for child in self._children.values():
            child.send_signal(signal.SIGINT)

    def close(self) -> None:
        pass
