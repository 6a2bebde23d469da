"""Steps as tasks of Ray: on the cluster that RAY_ADDRESS names or `ray start` has begun here, else on one of our own.

Ray finds the place for a task, and starts it again when its worker or its node is lost; the step then goes on where it
had saved. Where workers do not see the study's folder, what a step needs travels with its task, and what it makes comes
back when it ends.
"""

import dataclasses
import importlib
import pathlib
import tempfile
from typing import Any

from traces_jax.host import cli, errors
from traces_jax.host.study.engines import base, parcels
from traces_jax.host.study.engines.base import Job

# How often Ray tries again when it loses a worker. A loss is nobody's fault, and steps resume.
_LOSSES = 10


class RayCluster:
    """Tasks that end with this process. shared: whether workers see the study's folder."""

    def __init__(self, *, shared: bool):
        try:
            self._ray = importlib.import_module("ray")
        except ImportError:
            raise errors.UserError("--engine=ray needs Ray; pip install 'traces_jax[ray]' brings it.") from None
        self._shared, self._stopped = shared, False
        self._tasks: dict[Any, Job] = {}
        self._ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")

    def start(self, job: Job) -> None:
        # A new process for each task: the old one may have been interrupted.
        options = {"num_cpus": job.cpus, "num_gpus": job.gpus, "max_retries": _LOSSES, "max_calls": 1}
        if self._shared:
            task = self._ray.remote(**options)(base.finish).remote(job)
        else:
            task = self._ray.remote(**options)(_finish_elsewhere).remote(job, parcels.pack(job.root, _inputs(job)))
        self._tasks[task] = job

    def ended(self) -> dict[str, int]:
        ready, _ = (
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0) if self._tasks else ([], [])
        )
        found = {}
        for task in ready:
            job = self._tasks.pop(task)
            found[job.step.name] = self._result(task, job)
        return found

    def _result(self, task: Any, job: Job) -> int:
        """The exit code, once all that the step made is in its place."""
        try:
            result = self._ray.get(task)
        except (self._ray.exceptions.TaskCancelledError, KeyboardInterrupt):
            return cli.STOPPED
        except self._ray.exceptions.RayError:
            return 1
        if self._shared:
            return result
        code, parcel = result
        parcels.unpack(parcel, job.root, _outputs(job))
        return code

    def stop(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=self._stopped)
        self._stopped = True

    def close(self) -> None:
        self._ray.shutdown()


def _inputs(job: Job) -> list[str]:
    """What a step needs: what it has made so far, and what it starts from."""
    return [*_outputs(job), *job.inputs]


def _outputs(job: Job) -> list[str]:
    """The folder of the step comes last: it says whether the step is done."""
    return [job.step.output, job.step.folder]


def _finish_elsewhere(job: Job, parcel: bytes) -> tuple[int, bytes]:
    """Runs a job in a folder of the worker's own. Returns its exit code and what it has made."""
    with tempfile.TemporaryDirectory(prefix="traces_jax_study_") as folder:
        root = pathlib.Path(folder)
        parcels.unpack(parcel, root, _inputs(job))
        code = base.finish(dataclasses.replace(job, root=root))
        return code, parcels.pack(root, _outputs(job))
