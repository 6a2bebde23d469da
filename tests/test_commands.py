"""The commands as a stranger meets them: lists, help, names of experiments, completion."""

import json
import pathlib
import runpy
import subprocess
import sys

import pytest
from helpers import ROOT, make_config

import traces_jax
from traces_jax import __main__ as commands
from traces_jax import config as config_lib
from traces_jax.config import describe
from traces_jax.host import completion, help, session, shipped
from traces_jax.host.run import announce, build

PACKAGE = pathlib.Path(traces_jax.__file__).parent


def run(*arguments, cwd, environment):
    """A command in another folder than the repository."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_list_names_every_command():
    files = [path for path in PACKAGE.glob("*.py") if "__main__" in path.read_text() and path.stem != "__main__"]
    assert {path.stem for path in files} | {"tasks"} == set(commands.COMMANDS)
    for name in commands.COMMANDS:
        assert f"  {name} " in commands.usage()
    assert len(commands.usage().splitlines()) <= 24


@pytest.fixture(scope="module")
def pages():
    """What --help of each command prints. In one interpreter: starting one for each would take long."""
    code = (
        "import contextlib, io, json, sys\n"
        "from absl import flags\n"
        "from absl import logging\n"
        "from traces_jax.__main__ import COMMANDS, main\n"
        "pages, before = {}, set(flags.FLAGS)\n"
        "for name in COMMANDS:\n"
        "    sys.argv = ['traces-jax', name, '--help']\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "        main()\n"
        "    pages[name] = out.getvalue()\n"
        "    for flag in set(flags.FLAGS) - before: delattr(flags.FLAGS, flag)\n"
        "print(json.dumps(pages))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_help_fits_a_screen_and_ends_with_an_example(name, pages):
    lines = pages[name].splitlines()
    assert 3 <= len(lines) <= help.LINES
    assert max(map(len, lines)) <= help.WIDTH
    assert "xample:" in lines[-2] + lines[-1] and f"python -m traces_jax.{name}" in lines[-1]
    if name != "tasks":
        for flag in completion.flags(name):
            assert flag == "--help" or flag.startswith("--config.") or flag in pages[name]


def test_settings_are_listed_with_their_comments():
    groups = {path.partition(".")[0] for path in config_lib.all_fields() if "." in path}
    assert set(describe.groups()) - {"main"} == groups
    listed = [setting.path for group in describe.groups() for setting in describe.settings(group)]
    assert sorted(listed) == sorted(config_lib.all_fields())
    text = " ".join(describe.page("lagrange").split())
    assert "--config.lagrange.window=50 Number of finished episodes over which the constraint is averaged." in text
    with pytest.raises(config_lib.ConfigError, match="did you mean 'ppo'"):
        describe.settings("pppo")


def test_experiments_by_name(tmp_path, monkeypatch):
    """In any folder; a file of one's own comes first."""
    monkeypatch.chdir(tmp_path)
    assert shipped.find("ball_run") == shipped.find("experiments/ball_run.py") == ROOT / "experiments/ball_run.py"
    assert shipped.find("experiments/studies/smoke.py") == ROOT / "experiments/studies/smoke.py"
    assert shipped.names() == sorted(path.stem for path in (ROOT / "experiments").glob("*.py"))
    own = "from traces_jax import config\ndef get_config(): return config.make(seed=7)\n"
    (tmp_path / "ball_run.py").write_text(own)
    assert traces_jax.experiment("ball_run.py").seed == 7
    config = traces_jax.experiment("ball_run")
    assert (config.task, config.seed) == ("SafetyBallRun-v0", 0)
    with pytest.raises(AttributeError):
        config.ppo.clop = 1
    assert shipped.find_study("smoke") == shipped.find("experiments/studies/smoke.py")
    with pytest.raises(traces_jax.UserError, match="experiment 'ball_ran' does not exist; give a file, or one of ant,"):
        traces_jax.experiment("ball_ran")


def test_commands_outside_the_repository(tmp_path, environment):
    """By name, with --print_config, through the list of commands."""
    flags = ["--config=ball_run", "--config.seeds=3", "--print_config"]
    done = run("traces_jax", "train", *flags, cwd=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert (tree["task"], tree["seeds"]) == ("SafetyBallRun-v0", 3)
    assert not list(tmp_path.iterdir())
    wrong = run("traces_jax", "trian", cwd=tmp_path, environment=environment)
    assert wrong.returncode == 2 and wrong.stderr.startswith(
        "traces_jax: 'trian' is not a command; choose one of train,"
    )


def test_tasks_are_listed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tasks"])
    runpy.run_module("traces_jax.tasks", run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14, "a heading, twelve tasks and the one for people"
    assert lines[1].split() == ["SafetyAntVelocity-v1", "27", "8", "1000"]


def completed(tmp_path, *words):
    """What bash offers for the last word."""
    (tmp_path / "script").write_text(completion.script("bash"))
    line = " ".join(f"'{word}'" for word in words)
    code = (
        f"compopt() {{ :; }}; source {tmp_path}/script; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _traces_jax; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_tab_completion(tmp_path):
    assert completed(tmp_path, "traces-jax", "tr") == ["train"]
    assert completed(tmp_path, "traces-jax", "train", "--config.ppo.cl") == ["--config.ppo.clip="]
    assert completed(tmp_path, "traces-jax", "train", "--config", "=", "ball") == ["ball_run"]
    assert completed(tmp_path, "traces-jax", "evaluate", "--di") == ["--diagnostics"]
    assert completed(tmp_path, "traces-jax", "completion", "") == ["bash", "zsh"]
    assert "--config.ppo.clip=" not in completed(tmp_path, "traces-jax", "watch", "--")


def test_train_is_one_name_however_it_is_reached(monkeypatch):
    """A function until somebody imports the command's module, which can then be called like it."""
    seen = []
    monkeypatch.setattr(session, "train", lambda *given, **named: seen.append((given, named)))
    code = (
        "import traces_jax, types\n"
        "assert not isinstance(traces_jax.train, types.ModuleType)\n"
        "import traces_jax.train\n"
        "traces_jax.train()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "missing 1 required positional argument: 'config'" in done.stderr
    module = __import__("traces_jax.train", fromlist=["train"])
    module("ball_run", run_dir="runs/a")
    assert seen == [(("ball_run",), {"run_dir": "runs/a"})]


def test_importing_loads_nothing_but_what_is_used():
    code = (
        "import sys, traces_jax\n"
        "heavy = ('jax', 'numpy', 'absl', 'mujoco')\n"
        "assert not [name for name in heavy if name in sys.modules]\n"
        "assert {'load', 'train', 'experiment', 'Policy', 'UserError'} <= set(dir(traces_jax))\n"
        "assert traces_jax.config.make(seed=3).seed == 3\n"
        "try: traces_jax.lode\n"
        "except AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "module 'traces_jax' has no attribute 'lode'\n", done.stderr


def test_a_run_says_what_it_runs_on():
    settings = {"task": "ProbeHistory", "steps": 3200, "seeds": 2, "environment": {"count": 4, "steps": 8}}
    settings |= {"ppo": {"minibatch": 8}, "policy": {"hidden": (8,)}, "critic": {"hidden": (8,)}}
    settings |= {"estimator": {"hidden": 2, "depth": 1, "decoder": (4,)}, "method": {"source": "traces"}}
    settings |= {"labels": {"interval": 4}, "sweep": "ppo.clip=0.1,0.2"}
    lines = announce.lines(build.build(make_config(**settings)))
    found = dict(line.split(maxsplit=1) for line in lines)
    assert found["device"].startswith("2 of 2 CPU cores (")
    assert found["engine"] == "none"
    assert found["lanes"] == "4: seeds 0 to 1, each with 2 settings"
    # Actor: 1 observation and 2 of memory to 8 to 1, and a deviation. Critics: 1 and 3 to 8 to 1. GRU of 2 inputs and 2
    # units: 12 + 12 + 6 + 6; decoder: 4 of memory and 2 of the step to 4; two heads.
    sizes = (3 * 8 + 8) + (8 + 1) + 1, (8 + 8 + 9) + (3 * 8 + 8 + 9), 36 + (6 * 4 + 4) + 2 * 5
    assert found["networks"] == "parameters of each lane: actor {}, critics {}, estimator {}".format(*sizes)
    # 100 iterations of 4 episodes; 13 % of them.
    assert found["labels"].startswith("up to 52 trajectories of each lane, of about 400 ")
    few = make_config(**settings, query={"budget": 7})
    assert announce.lines(build.build(few))[-1].startswith("labels    up to 7 ")
    oracle = make_config(**{**settings, "method": {"source": "oracle"}})
    assert announce.lines(build.build(oracle))[-1].startswith("labels    none ")
