"""Steps as jobs of SLURM, through submitit: steps that can begin at the same time are one array.

The study's folder must be on a file system that the nodes share. A job whose time is over, or that has to make room,
saves, is put back into the queue and goes on. Jobs outlive the study that submitted them: it finds them again by the
numbers it left in their folders.
"""

import importlib
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any

from traces_jax.host import cli, errors, locks
from traces_jax.host.study import outcomes
from traces_jax.host.study.engines import base
from traces_jax.host.study.engines.base import Job

# How often a job may run out of time.
_TIMEOUTS = 10_000
_NUMBER = "slurm.txt"


class Slurm:
    """Jobs of a cluster. parameters: of submitit, such as slurm_partition. cluster: "local" for processes, in tests."""

    def __init__(self, root: pathlib.Path, parameters: Mapping[str, Any], cluster: str = "slurm"):
        submitit = _submitit()
        try:
            self._executor = submitit.AutoExecutor(root / "slurm", cluster=cluster, slurm_max_num_timeout=_TIMEOUTS)
            self._executor.update_parameters(**parameters)
        except (RuntimeError, ValueError, NameError, TypeError) as error:
            raise errors.UserError(f"--engine=slurm cannot be used: {cli.one_line(error)}") from None
        self._job_class = submitit.LocalJob if cluster == "local" else submitit.SlurmJob
        self._waiting: list[Job] = []
        self._jobs: dict[str, tuple[Any, Job]] = {}
        self._stopped = False

    def start(self, job: Job) -> None:
        earlier = self._earlier(job)
        if earlier is None:
            self._waiting.append(job)
        else:
            self._jobs[job.step.name] = earlier, job

    def _earlier(self, job: Job) -> Any:
        """The job of an earlier call of the study, if it is still in the queue or runs.

        Of a job that SLURM knows nothing of, nobody can tell. It gets a second one, which waits for its turn.
        """
        path = job.root / job.step.folder / _NUMBER
        if not path.exists():
            return None
        found = self._job_class(self._executor.folder, path.read_text(encoding="utf-8").strip())
        return None if found.done() or found.state == "UNKNOWN" else found

    def ended(self) -> dict[str, int]:
        self._submit()
        found = {}
        for name, (submitted, job) in list(self._jobs.items()):
            if self._has_ended(submitted, job):
                del self._jobs[name]
                found[name] = _code(job)
        return found

    def _has_ended(self, submitted: Any, job: Job) -> bool:
        """A job that was cancelled has ended as soon as its step has saved: SLURM's accounting tells it much later."""
        return not locks.is_held(job.root / job.step.folder / outcomes.LOCK) if self._stopped else submitted.done()

    def _submit(self) -> None:
        if not self._waiting:
            return
        first = self._waiting[0]
        self._executor.update_parameters(cpus_per_task=first.cpus, gpus_per_node=first.gpus)
        with self._executor.batch():
            submitted = [self._executor.submit(Worker(job)) for job in self._waiting]
        for own, job in zip(submitted, self._waiting, strict=True):
            (job.root / job.step.folder / _NUMBER).write_text(own.job_id, encoding="utf-8")
            self._jobs[job.step.name] = own, job
        self._waiting.clear()

    def stop(self) -> None:
        self._stopped = True
        self._waiting.clear()
        for submitted, _ in self._jobs.values():
            submitted.cancel(check=False)

    def close(self) -> None:
        pass


class Worker:
    """What submitit calls on a node, and what it calls when the time is over."""

    def __init__(self, job: Job):
        self._job = job
        self._child: subprocess.Popen | None = None

    def __call__(self) -> int:
        self._child = base.start(self._job)
        return base.wait(self._child)

    def checkpoint(self) -> Any:
        """Saves, and asks to be called again."""
        if self._child is not None:
            base.interrupt(self._child)
        return _submitit().helpers.DelayedSubmission(Worker(self._job))


def _code(job: Job) -> int:
    """The exit code of a step as its folder says; a job that was cancelled, or lost with its node, says nothing."""
    code = outcomes.code(job.root / job.step.folder)
    return cli.STOPPED if code is None else code


def _submitit() -> Any:
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise errors.UserError("--engine=slurm needs submitit; pip install 'traces_jax[slurm]' brings it.") from None
