"""Studies: what is planned, what is shown, and what is done when steps end in all the ways they can."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from helpers import ROOT, wait_for

from traces_jax import config as config_lib
from traces_jax.host import cli, errors, locks
from traces_jax.host.report import make as report
from traces_jax.host.study import command, outcomes, plan, read, record, runner, show
from traces_jax.host.study.engines import base, parcels
from traces_jax.host.study.outcomes import State
from traces_jax.host.study.rows import TASKS, Row, Study, against, varied

SHIPPED = sorted((ROOT / "experiments/studies").glob("*.py"))


def make(*rows, tasks=(), methods=(), seeds=None):
    return plan.make(Study(rows), tasks, methods, seeds)


def named(steps, word):
    return [name for name in steps if word in name]


# --- Plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_study_can_be_planned(path):
    study = read.study(path)
    steps = plan.make(study, (), (), None)
    assert len([step for step in steps.values() if step.row]) == sum(row.seeds for row in study.rows)
    assert all(set(step.needs) <= set(list(steps)[:place]) for place, step in enumerate(steps.values()))


def test_the_shipped_studies_are_those_of_the_paper():
    assert {path.stem for path in SHIPPED} == {
        "main_table", "low_data", "random_init", "selection", "d", "noise", "clamp", "interval", "terminal_only",
        "b50", "matched_labels", "appendix", "smoke", "solvers", "systems", "human",
    }  # fmt: skip
    main = read.study(ROOT / "experiments/studies/main_table.py")
    assert {row.task for row in main.rows} == set(TASKS) and len(TASKS) == 12
    assert {(row.method, row.warm) for row in main.rows} == {("traces", True), ("traces", False), ("oracle", False)}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_labels_of_a_study_last_for_the_whole_run(path):
    """As many are due in a run as its budget allows, neither fewer nor sooner."""
    for row in read.study(path).rows:
        if "query.budget" not in row.settings:
            continue
        file = read.experiment(row.task)
        trajectories = file["steps"] // (500 if "Circle" in row.task else file["environment"]["steps"])
        assert row.settings["query.fraction"] * trajectories == pytest.approx(row.settings["query.budget"])


def test_the_appendix_has_every_value_of_the_paper():
    rows = read.study(ROOT / "experiments/studies/appendix.py").rows
    for task in ("CarRun", "AntRun"):
        own = [row for row in rows if row.task == task and row.method == "traces"]
        settings = {row.name: row.settings for row in own}
        for path, default, others in (
            ("constraint.d", 0.9, {0.99, 0.8, 0.5}),
            ("labels.noise", 0.0, {0.05, 0.1, 0.2}),
            ("estimator.clamp", -7.0, {-10.0}),
            ("constraint.cost_limit", 25.0, {50.0}),
        ):
            assert {found.get(path, default) for found in settings.values()} == {default, *others}
        assert {name for name, found in settings.items() if found["query.budget"] == 5000} == {"full", "b=50"}
        assert settings["full"]["labels.terminal_only"] and settings["random"]["query.rule"] == "random"
        assert all(row.seeds == 4 and row.warm for row in own) and len(own) == 12


def test_every_task_has_an_experiment_file():
    assert all(read.experiment_path(task).is_file() for task in TASKS)
    assert read.experiment_path("mine/own.py") == pathlib.Path("mine/own.py")


def test_a_change_renames_only_what_it_changes():
    rows = (Row("BallRun", "traces", "a"), Row("BallRun", "traces", "b", {"ppo.clip": 0.1}))
    before = make(*rows)
    after = make(rows[0], dataclasses.replace(rows[1], settings={"ppo.clip": 0.3}))
    assert named(before, "-a-") == named(after, "-a-")
    assert not set(named(before, "-b-")) & set(named(after, "-b-"))
    assert set(make(*rows, seeds=2)) == {name for name in make(*rows, seeds=3) if "seed-2" not in name}


def test_a_change_of_an_experiment_file_renames_its_runs(tmp_path):
    file = tmp_path / "own.py"
    text = "from traces_jax import config\ndef get_config():\n    return config.make(task='ProbeBudget', steps={})\n"
    names = []
    for steps in (40_000, 80_000):
        file.write_text(text.format(steps))
        names += make(Row(str(file), "oracle"), seeds=1)
    assert len(set(names)) == 2 and all(name.startswith("own-oracle-seed-0-") for name in names)


def test_rows_share_offline_data_and_estimators():
    common = {"seeds": 1, "warm": True}
    steps = make(*varied(["BallRun"], "traces", "constraint.d", (0.8, 0.9), **common))
    assert [len(named(steps, word)) for word in ("-collect-", "-pretrain-", "seed-0")] == [1, 1, 2]
    steps = make(*varied(["BallRun"], "traces", "labels.noise", (0.0, 0.1), **common))
    assert [len(named(steps, word)) for word in ("-collect-", "-pretrain-", "seed-0")] == [1, 2, 2]
    run = steps[named(steps, "noise=0.1")[0]]
    (estimator,) = (steps[name] for name in run.needs)
    assert f"--config.estimator.init={estimator.output}" in run.arguments
    assert "--config.labels.noise=0.1" in estimator.arguments
    (data,) = (steps[name] for name in estimator.needs)
    assert f"--data={data.output}" in estimator.arguments and f"--out={data.output}" in data.arguments


def test_what_collect_and_pretrain_read_is_known():
    """By name, so that a new field is thought about: an estimator of other settings would be shared in silence."""
    matters = lambda path: any(config_lib.matters_to(name, path) for name in ("collect", "pretrain"))  # noqa: E731
    only_training = {path for path in config_lib.all_fields() if not matters(path)}
    groups = {path.partition(".")[0] for path in only_training}
    of_solvers = {"pid", "cup", "focops", "p3o", "trust_region", "cpo", "saute"}
    of_all = {"steps", "seed", "seeds", "sweep", "method", "query", "pool", "refit", "constraint", "run"}
    assert groups == of_all | of_solvers
    assert not config_lib.matters_to("collect", "labels.noise") and config_lib.matters_to("pretrain", "labels.noise")


def test_rows_are_chosen_by_task_and_method():
    rows = [Row(task, method, seeds=1) for task in ("BallRun", "CarRun") for method in ("traces", "oracle")]
    steps = make(*rows, tasks=("CarRun",), methods=("oracle",))
    assert [step.row for step in steps.values()] == [rows[3]]


def test_a_method_may_name_its_solver():
    rows = [Row("BallRun", method, seeds=1) for method in ("oracle", "oracle+cup", "traces+cup")]
    plain, cup, learned = make(*rows).values()
    flags = {"--config.method.source=oracle", "--config.method.solver=cup"}
    assert flags <= set(cup.arguments) and not any("solver" in argument for argument in plain.arguments)
    assert {"--config.method.source=traces", "--config.method.solver=cup"} <= set(learned.arguments)
    assert list(make(*rows, methods=("oracle+cup",))) == [cup.name]


def test_the_experiment_file_of_a_step_says_what_the_original_said(tmp_path):
    (step,) = make(Row("BallRun", "oracle", seeds=1)).values()
    base.prepare(tmp_path, step)
    assert read.experiment(str(tmp_path / step.folder / "experiment.py")) == read.experiment("BallRun")


def test_values_become_flags_that_are_read_back():
    settings = {"policy.hidden": (8, 8), "run.tensorboard": False, "ppo.clip": 0.1, "steps": 20_000}
    (step,) = make(Row("BallRun", "oracle", settings=settings, seeds=1)).values()
    assert set(step.arguments) >= {
        "--config.policy.hidden=(8, 8)", "--config.run.tensorboard=false", "--config.ppo.clip=0.1",
        "--config.steps=20000", "--config.method.source=oracle", "--config.seed=0", "--config.seeds=1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        ([Row("BallRun", "magic")], {}, "row 'magic' of BallRun: method.source"),
        ([Row("BallRun", "oracle+magic")], {}, "row 'oracle.magic' of BallRun: method.solver='magic' is not right"),
        ([Row("BallRun", "oracle", "x", {"ppo.clap": 1})], {}, "row 'oracle x' of BallRun: field 'ppo.clap'"),
        ([Row("BallRun", "oracle", "", {"ppo.clip": -1})], {}, "row 'oracle' of BallRun: ppo.clip=-1"),
        ([Row("BallRun", "oracle", "", {"seed": 3})], {}, "seed cannot be set"),
        ([Row("BallRun", "oracle", seeds=0)], {}, "seeds=0 of row 'oracle' of BallRun is not right"),
        ([Row("BallRun", "oracle")] * 2, {}, "2 rows of BallRun are called 'oracle'"),
        ([Row("BallRan", "oracle")], {}, "experiments/ball_ran.py does not exist"),
        ([Row("BallRun", "oracle")], {"tasks": ["BallRan"]}, "'BallRan'"),
        ([Row("BallRun", "oracle")], {"methods": ["traces"]}, "'traces'"),
        (
            [Row("BallRun", "oracle"), Row("CarRun", "traces")],
            {"tasks": ["BallRun"], "methods": ["traces"]},
            "no row of the study",
        ),
    ],
)
def test_rows_that_cannot_be_planned_are_refused(rows, options, sentence):
    with pytest.raises(errors.USER_ERRORS, match=sentence):
        make(*rows, **options)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "does not exist"),
        ("x = 1", r"has no function get_study\(\)"),
        ("def get_study(): return 3", "a Study of Rows would be right"),
        ("def get_study(): return 1 / 0", "cannot be read: division by zero"),
        ("def get_study(:", "is not Python"),
        ("from traces_jax.host.study.rows import Study\nget_study = lambda: Study([])", "has no rows"),
        (
            "from traces_jax.host.study.rows import *\n"
            "get_study = lambda: Study([Row('BallRun', 'oracle')], [('oracle', 'orakel')])",
            "orakel",
        ),
    ],
)
def test_study_files_that_cannot_be_read_are_refused(tmp_path, text, sentence):
    path = tmp_path / "study.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(errors.USER_ERRORS, match=sentence):
        read.study(path)


def test_rows_are_compared_with_one():
    rows = varied(["BallRun", "CarRun"], "traces", "constraint.d", (0.8, 0.9))
    assert against("traces d=0.9", rows) == [("traces d=0.8", "traces d=0.9")]


# --- What is seen --------------------------------------------------------------------------------------------------


def end(root, step, code, log=""):
    """Leaves what a step leaves."""
    base.prepare(root, step)
    (root / step.folder / "log.txt").write_text(log)
    outcomes.write(root / step.folder, code)
    if code == cli.OK:
        (root / step.output).mkdir(parents=True)


def test_a_study_is_seen_as_it_is(tmp_path):
    steps = make(Row("BallRun", "oracle", seeds=5))
    done, failed, stopped, running, _ = steps.values()
    end(tmp_path, done, cli.OK)
    end(tmp_path, failed, cli.BAD_INPUT, "iteration 1/4  return 1  0:00:09 left\ntraces_jax.train: no room.\n\n")
    end(tmp_path, stopped, cli.STOPPED, "iteration 1/4  return 1  0:00:09 left\nstopped\n")
    end(tmp_path, running, cli.BAD_INPUT, "iteration 1/4  a  0:00:09 left\niteration 2/4  b  0:00:07 left\n")
    with locks.in_turn(tmp_path / running.folder / "lock"):
        seen = show.look(tmp_path, steps.values())
        text = show.as_json(seen, steps)
    assert [own.state for own in seen.values()] == ["done", "failed", "waiting", "running", "waiting"]
    assert seen[failed.name].last_line == "traces_jax.train: no room."
    assert (seen[running.name].done, seen[running.name].total, seen[running.name].left) == (2, 4, "0:00:07")
    assert show.summary(seen) == "1 done, 1 running, 2 waiting, 1 failed of 5 steps"
    told = json.loads(text)
    assert told["counts"] == {"done": 1, "running": 1, "waiting": 2, "failed": 1}
    assert told["steps"][3] == {
        "name": running.name, "command": "train", "state": "running", "done": 2, "total": 4, "left": "0:00:07",
        "last_line": None, "output": running.output,
    }  # fmt: skip


def test_what_was_removed_is_not_done(tmp_path):
    (step,) = make(Row("BallRun", "oracle", seeds=1)).values()
    end(tmp_path, step, cli.OK)
    assert outcomes.look(tmp_path, step).state == State.DONE
    (tmp_path / step.output).rmdir()
    assert outcomes.look(tmp_path, step).state == State.WAITING


def test_a_damaged_outcome_is_none(tmp_path):
    for text in ("{", "[]", '{"code": "x"}', "{}"):
        (tmp_path / "outcome.json").write_text(text)
        assert outcomes.code(tmp_path) is None


def test_a_report_says_what_a_study_misses(tmp_path):
    study = Study([Row("BallRun", "oracle", seeds=2)])
    steps = plan.make(study, (), (), None)
    record.write(tmp_path, study, steps.values())
    with pytest.raises(errors.UserError, match="has not begun"):
        report.make([tmp_path], tmp_path / "report")


def test_a_damaged_record_is_refused(tmp_path):
    for text in ("[]", '{"runs": {}}', '{"runs": [], "compare": []}', '{"runs": {}, "compare": [1]}'):
        (tmp_path / "study.json").write_text(text)
        with pytest.raises(errors.UserError, match=r"study\.json is damaged"):
            record.read(tmp_path)


# --- The loop ------------------------------------------------------------------------------------------------------


class Scripted:
    """An engine without processes. codes: name -> exit codes of its attempts, in turn; then it ends well."""

    def __init__(self, root, codes=None, on_start=lambda: None):
        self.root, self.codes, self.on_start = root, codes or {}, on_start
        self.started, self.running, self.most, self.stops = [], {}, 0, 0

    def start(self, job):
        self.started.append(job.step.name)
        self.running[job.step.name] = job
        self.most = max(self.most, len(self.running))
        self.on_start()

    def ended(self):
        found = {}
        for name, job in self.running.items():
            code = self.codes[name].pop(0) if self.codes.get(name) else cli.OK
            if code != -9:
                outcomes.write(self.root / job.step.folder, code)
            (self.root / job.step.output).mkdir(parents=True, exist_ok=True)
            found[name] = code
        self.running = {}
        return found

    def stop(self):
        self.stops += 1


def run(root, steps, engine, jobs=2, retries=1):
    going = runner.Runner(root, steps, engine, jobs=jobs, retries=retries, cpus=1, gpus=0, path="")
    return going.run(lambda: None)


def test_steps_wait_for_those_they_need(tmp_path):
    steps = make(Row("BallRun", "traces", warm=True, seeds=3))
    engine = Scripted(tmp_path)
    assert run(tmp_path, steps, engine)
    assert [steps[name].module for name in engine.started] == ["collect", "pretrain", "train", "train", "train"]
    assert engine.most == 2
    again = Scripted(tmp_path)
    assert run(tmp_path, steps, again) and again.started == []


def test_a_failure_is_retried_and_then_left_while_others_go_on(tmp_path):
    steps = make(Row("BallRun", "traces", "warm", warm=True, seeds=1), Row("BallRun", "oracle", seeds=2))
    collect = named(steps, "-collect-")[0]
    engine = Scripted(tmp_path, {collect: [1, -9, 1]})
    assert run(tmp_path, steps, engine, retries=2)
    assert engine.started.count(collect) == 3
    states = {name: own.state for name, own in show.look(tmp_path, steps.values()).items()}
    assert states[collect] == State.FAILED
    assert [states[name] for name in named(steps, "-oracle-")] == [State.DONE] * 2
    assert states[named(steps, "-warm-")[0]] == State.WAITING
    again = Scripted(tmp_path)
    assert run(tmp_path, steps, again) and again.started[0] == collect, "the next call tries again"


def test_a_step_that_was_stopped_by_others_goes_on_for_ever(tmp_path):
    steps = make(Row("BallRun", "oracle", seeds=1))
    engine = Scripted(tmp_path, {name: [cli.STOPPED] * 5 for name in steps})
    assert run(tmp_path, steps, engine, retries=0) and len(engine.started) == 6


def test_a_killed_step_has_failed(tmp_path):
    steps = make(Row("BallRun", "oracle", seeds=1))
    assert run(tmp_path, steps, Scripted(tmp_path, {name: [-9] for name in steps}), retries=0)
    assert [own.state for own in show.look(tmp_path, steps.values()).values()] == [State.FAILED]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_and_starts_no_more(tmp_path, number):
    steps = make(Row("BallRun", "oracle", seeds=5))
    engine = Scripted(tmp_path, {name: [cli.STOPPED] for name in steps}, on_start=lambda: os.kill(os.getpid(), number))
    engine.ended, ended = lambda: ended() if engine.stops else {}, engine.ended
    assert not run(tmp_path, steps, engine)
    assert engine.stops == 1 and len(engine.started) == 2


# --- The command ---------------------------------------------------------------------------------------------------

OPTIONS = command.Options(
    out=pathlib.Path("nowhere"), tasks=(), methods=(), seeds=None, jobs=None, engine="local", retries=1, cpus=1,
    gpus=0, shared=True, slurm={},
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"jobs": 0}, "--jobs=0 is not right"),
        ({"jobs": 10_000}, "--jobs=10000 with --cpus=1"),
        ({"cpus": 10_000}, "--cpus=10000"),
        ({"cpus": 0}, "--cpus=0 is not right"),
        ({"gpus": 1}, "--gpus=1"),
        ({"retries": -1}, "--retries=-1 is not right"),
    ],
)
def test_options_that_no_engine_can_follow_are_refused(tmp_path, changes, sentence):
    options = dataclasses.replace(OPTIONS, out=tmp_path / "out", **changes)
    with pytest.raises(errors.UserError, match=sentence):
        command.run(ROOT / "experiments/studies/smoke.py", options)
    assert not options.out.exists()


def test_parameters_of_slurm():
    assert command.parameters(["a=b", "timeout_min=240"]) == {"a": "b", "timeout_min": 240}
    for wrong in ("a", "=b", "a="):
        with pytest.raises(errors.UserError, match="--slurm has"):
            command.parameters([wrong])


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(errors.UserError, match="is not a study"):
        command.run(ROOT / "experiments/studies/smoke.py", dataclasses.replace(OPTIONS, out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_second_runner_is_told_of_the_first(tmp_path):
    with (
        command.alone(tmp_path / "a"),
        pytest.raises(errors.UserError, match=f"in use by process {os.getpid()} on .* since"),
        command.alone(tmp_path / "a"),
    ):
        pass
    with command.alone(tmp_path / "a"):
        pass


# --- Processes -----------------------------------------------------------------------------------------------------


def python(code, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )


def test_processes_do_not_share_cores(tmp_path):
    """Each has a core of its own; one that finds none waits until a process dies."""
    code = (
        "import os, time\nfrom traces_jax.host.study import cores\ncores.pin(1)\n"
        "print(*os.sched_getaffinity(0), flush=True)\ntime.sleep(600)"
    )
    count = len(os.sched_getaffinity(0))
    children = [python(code, TMPDIR=str(tmp_path)) for _ in range(count)]
    try:
        found = {child.stdout.readline().strip() for child in children}
        assert found == {str(core) for core in os.sched_getaffinity(0)}
        late = python(code, TMPDIR=str(tmp_path))
        children.append(late)
        children[0].kill()
        assert late.stdout.readline().strip() in found
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_the_process_of_a_step_ends_with_its_parent(tmp_path):
    """Nobody would stop what a killed runner leaves behind."""
    (step,) = make(Row("BallRun", "oracle", seeds=1)).values()
    base.prepare(tmp_path, step)
    code = (
        "import os, pathlib, time\nfrom traces_jax.host.study.engines import base\n"
        "from traces_jax.host.study import plan, rows\n"
        f"root = pathlib.Path({str(tmp_path)!r})\n"
        "step = list(plan.make(rows.Study([rows.Row('BallRun', 'oracle', seeds=1)]), (), (), None).values())[0]\n"
        f"child = base.start(base.Job(root, step, (), 1, 0, {str(ROOT)!r}))\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    parent = python(code, TMPDIR=str(tmp_path))
    child = int(parent.stdout.readline())
    wait_for(lambda: locks.is_held(tmp_path / step.folder / "lock"))
    parent.kill()
    parent.communicate()
    wait_for(lambda: not pathlib.Path(f"/proc/{child}").exists())
    assert not locks.is_held(tmp_path / step.folder / "lock")
    assert outcomes.look(tmp_path, step).state == State.WAITING


def test_parcels_carry_files_and_folders(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "runs/a/b").mkdir(parents=True)
    (there / "runs/a/b/c").write_text("new")
    (there / "data").mkdir()
    (there / "data/d").write_text("data")
    (here / "runs/a").mkdir(parents=True)
    (here / "runs/a/old").write_text("old")
    names = ["runs/a", "data/d", "missing"]
    parcels.unpack(parcels.pack(there, names), here, names)
    files = {str(path.relative_to(here)): path.read_text() for path in here.rglob("*") if path.is_file()}
    assert files == {"runs/a/b/c": "new", "data/d": "data"}
