"""Several processes run together like one with all their devices, stop together, and none waits for a dead one."""

import os
import signal
import subprocess

import jax
import pytest
from helpers import assert_same_run, command, rows_written, wait_for

from benchmarks import hosts as benchmark
from traces_jax.core import parallel
from traces_jax.host import cli, errors, hosts, runtime
from traces_jax.host.run import build

RUN = ("--config.seeds=2", "--config.policy.hidden=(8,)", "--config.critic.hidden=(8,)", "--config.steps=4000")
MORE = ("--config.run.evaluation_episodes=2",)


def start(folder, environment) -> list[subprocess.Popen]:
    """The same command in two processes, each on its own core."""
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    cores = sorted(os.sched_getaffinity(0))[:2]
    return benchmark.start(command(folder, *RUN, *MORE), cores, environment, **outputs)


def end(processes) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    texts = [process.communicate(timeout=900) for process in processes]
    return [(process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


@pytest.mark.skipif(runtime.core_count() < 2, reason="each process has its own core")
def test_two_processes_equal_one_with_two_devices(tmp_path, environment):
    """Whatever happens to one of them on the way: a signal that asks it to stop, and one that kills it."""
    folder, alone = tmp_path / "two", tmp_path / "one"
    processes = start(folder, environment)
    wait_for(lambda: rows_written(folder) >= 20, seconds=900)
    processes[1].send_signal(signal.SIGTERM)
    (first, said, _), (second, silent, _) = end(processes)
    assert first == second == cli.STOPPED
    assert f"stopped after iteration {rows_written(folder) // 2} of 100" in said and "iteration" not in silent

    processes = start(folder, environment)
    before = rows_written(folder)
    wait_for(lambda: rows_written(folder) >= before + 20, seconds=900)
    processes[0].kill()
    (_, _, _), (code, _, complaint) = end(processes)
    assert code == cli.STOPPED
    assert "another process of this run has ended" in complaint and "resumes from the last checkpoint" in complaint

    assert [code for code, _, _ in end(start(folder, environment))] == [cli.OK, cli.OK]
    assert subprocess.run(command(alone, *RUN, *MORE), env=environment, stdout=subprocess.DEVNULL).returncode == 0
    assert_same_run(folder, alone)
    assert (folder / "evaluation.json").read_bytes() == (alone / "evaluation.json").read_bytes()


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        ({"SLURM_STEP_NODELIST": "a[1-2]", "SLURM_NTASKS": "2"}, True),
        ({"SLURM_STEP_NODELIST": "a1", "SLURM_NTASKS": "1"}, False),
        ({"SLURM_NTASKS": "2"}, False),  # in an allocation, but not started by srun
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"JAX_NUM_PROCESSES": "2"}, True),
    ],
)
def test_the_environment_says_whether_there_are_others(environment, several):
    assert hosts._several(environment) == several


def test_what_cannot_be_joined_is_refused_in_a_sentence():
    hosts.join(None, {})
    hosts.join(False, {"JAX_NUM_PROCESSES": "2"})
    with pytest.raises(errors.UserError, match=r"JAX_PROCESS_ID='one' is not right: it must be a whole number\."):
        hosts.join(None, {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "one"})
    with pytest.raises(errors.UserError, match=r"--distributed is not possible here .*; elsewhere, set JAX_COORD"):
        hosts.join(True, {})


def test_a_process_without_work_is_refused(monkeypatch):
    """All lanes and environments fit on the devices of the first one."""
    grid = parallel.grid(3, 7, jax.devices())
    build._check_all_take_part(grid, 3)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(errors.UserError, match=r"seeds times settings = 3 is not right in 2 processes"):
        build._check_all_take_part(grid, 3)
