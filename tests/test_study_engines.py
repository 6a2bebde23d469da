"""Studies that really run: on this machine, on a local Ray, and through submitit's local executor."""

import signal
import subprocess
import sys
import tempfile
import threading

import pytest
from helpers import ROOT, rows_written, wait_for

from benchmarks import remains
from traces_jax.host import cli
from traces_jax.host.study import outcomes, plan, runner
from traces_jax.host.study.engines import base
from traces_jax.host.study.engines.ray_cluster import RayCluster
from traces_jax.host.study.engines.slurm import Slurm, Worker
from traces_jax.host.study.rows import Row, Study

EXPERIMENT = """
from traces_jax import config


def get_config():
    return config.make(
        task="ProbeBudget",
        steps=8000,
        environment={"count": 2, "steps": 20},
        ppo={"minibatch": 20},
        run={"tensorboard": False, "checkpoint_every": 5, "evaluation_episodes": 2},
    )
"""
STUDY = """
from traces_jax.host.study.rows import Row, Study


def get_study():
    rows = [Row("probe.py", "oracle", "long", seeds=1), Row("probe.py", "oracle", "short", {"steps": 400}, seeds=1)]
    return Study(rows, compare=[("oracle short", "oracle long")])
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an experiment and a study. Cores are shared out among the processes of this test alone."""
    (tmp_path / "probe.py").write_text(EXPERIMENT)
    (tmp_path / "study.py").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Ray's sockets lie there, whose names must be short.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:
        monkeypatch.setenv("TMPDIR", short)
        yield tmp_path


def start():
    line = [sys.executable, "-m", "traces_jax.study", "study.py", "--out=out"]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(child, code):
    said, _ = child.communicate(timeout=120)
    assert child.returncode == code, said
    return said


def test_a_study_is_stopped_and_goes_on(place):
    """Ctrl-C saves; the same command ends with all rows and a report."""
    child = start()
    runs = place / "out/runs"
    wait_for(lambda: [run for run in runs.glob("*-long-*") if rows_written(run) >= 20])
    second = finish(start(), cli.BAD_INPUT)
    assert f"in use by process {child.pid}" in second
    child.send_signal(signal.SIGINT)
    assert "the same command goes on" in finish(child, cli.STOPPED)
    (long,) = runs.glob("*-long-*")
    assert 20 <= rows_written(long) < 200
    assert "2 done, 0 running" in finish(start(), cli.OK)
    results = (place / "out/report/results.md").read_text()
    assert "PPO-Lagrangian short | PPO-Lagrangian long" in results
    assert len(remains.rows(long / "metrics.jsonl")) == 200


def short_study():
    return plan.make(Study([Row("probe.py", "oracle", "", {"steps": 400}, seeds=2)]), (), (), None)


def run(engine, steps, root):
    root.mkdir(exist_ok=True)
    try:
        going = runner.Runner(root, steps, engine, jobs=2, retries=0, cpus=1, gpus=0, path=str(ROOT))
        return going.run(lambda: None)
    finally:
        engine.close()


def check_done(root, steps):
    for step in steps.values():
        assert outcomes.is_done(root, step), outcomes.last_line(root / step.folder)
        assert rows_written(root / step.output) == 10


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "copied"])
def test_ray_runs_a_study(place, shared):
    pytest.importorskip("ray")
    steps = short_study()
    assert run(RayCluster(shared=shared), steps, place / "out")
    check_done(place / "out", steps)
    ran = [(place / "out" / step.output / "run.json").read_text() for step in steps.values()]
    assert all('"devices": 1' in text for text in ran)


def test_submitit_runs_a_study(place):
    pytest.importorskip("submitit")
    steps = short_study()
    engine = Slurm(place / "out", {"timeout_min": 5}, cluster="local")
    assert run(engine, steps, place / "out")
    check_done(place / "out", steps)


def test_a_job_whose_time_is_over_saves_and_is_called_again(place):
    """As submitit does: `checkpoint` while the job runs, and another call of what it returns."""
    pytest.importorskip("submitit")
    (step,) = plan.make(Study([Row("probe.py", "oracle", seeds=1)]), (), (), None).values()
    base.prepare(place, step)
    worker = Worker(base.Job(place, step, (), 1, 0, str(ROOT)))
    codes = []
    thread = threading.Thread(target=lambda: codes.append(worker()))
    thread.start()
    wait_for(lambda: rows_written(place / step.output) >= 20)
    # SLURM sends its warning to all processes of a job.
    worker._child.send_signal(signal.SIGUSR2)
    again = worker.checkpoint()
    thread.join()
    assert codes == [cli.STOPPED] and 20 <= rows_written(place / step.output) < 200
    assert again.result() == cli.OK and rows_written(place / step.output) == 200


def test_a_job_of_an_earlier_call_is_found_again(place):
    """SLURM's jobs outlive the study. Here they are played by jobs that are done, or not, as the test says."""
    pytest.importorskip("submitit")
    lost, over, alive = plan.make(Study([Row("probe.py", "oracle", seeds=3)]), (), (), None).values()
    engine = Slurm(place, {}, cluster="local")

    class Played:
        def __init__(self, folder, number):
            self.number, self.state = number, "UNKNOWN" if number == "6" else "PENDING"

        def done(self):
            return self.number == "7"

    engine._job_class = Played
    for own, number in ((lost, "6"), (over, "7"), (alive, "8")):
        base.prepare(place, own)
        (place / own.folder / "slurm.txt").write_text(number)
        engine.start(base.Job(place, own, (), 1, 0, str(ROOT)))
    assert [job.step for job in engine._waiting] == [lost, over] and list(engine._jobs) == [alive.name]
