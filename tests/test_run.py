"""Run folders: stopping, resuming, dying, and everything that can be wrong with them."""

import json
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from helpers import ROOT, assert_same_run, make_config, make_folder, rows_written, with_agent

from traces_jax.host import errors
from traces_jax.host.run import loop, metrics, restore

HOPPER = {
    "task": "SafetyHopperVelocity-v1",
    "physics": "native",
    "steps": 160,
    "environment": {"count": 2, "steps": 20, "reset_each_iteration": False},
    "ppo": {"minibatch": 20, "passes": 2},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
    "run": {"checkpoint_every": 1, "tensorboard": False, "evaluation_episodes": 0},
}
PROBE = {
    **HOPPER,
    "task": "ProbeBudget",
    "constraint": {"cost_limit": 100.0},
    "run": {"checkpoint_every": 1, "tensorboard": False, "evaluation_episodes": 2, "keep": 4},
}


# A query after every second iteration: stopped after the third, the pool is half full and the store has its first rows.
TRACES = {
    **HOPPER,
    "task": "ProbeBudget",
    "steps": 480,
    "environment": {"count": 4, "steps": 20},
    "method": {"source": "traces"},
    "constraint": {"cost_limit": 3.0},
    "labels": {"interval": 2},
    "query": {"fraction": 0.25, "batch": 4},
    "refit": {"store": 16, "passes": 2, "steps": 3, "new_batch": 2, "stored_batch": 4},
}


# Stopped in the middle of an episode: half of a budget is spent.
SAUTE = {
    **HOPPER,
    "task": "ProbeBudget",
    "steps": 120,
    "environment": {"count": 2, "steps": 15, "reset_each_iteration": False},
    "ppo": {"minibatch": 10},
    "method": {"source": "oracle", "solver": "trpo_saute"},
    "constraint": {"cost_limit": 3.0},
}


# Stopped in the middle of episodes of which an estimator knows the first half.
OPEN = {
    **TRACES,
    "environment": {"count": 4, "steps": 5, "reset_each_iteration": False},
    "steps": 120,
    "ppo": {"minibatch": 10, "passes": 1},
    "pool": {"tracked": 2},
    "query": {"fraction": 0.5, "batch": 1},
}


def stop_after(monkeypatch, iterations: int) -> None:
    """Makes the run believe that Ctrl-C was pressed in its `iterations`-th iteration."""
    from traces_jax.core import parallel

    real = parallel.Program.chunk

    def chunk(self, state, start, length):
        if start == iterations - 1:
            signal.raise_signal(signal.SIGINT)
        return real(self, state, start, length)

    monkeypatch.setattr(parallel.Program, "chunk", chunk)


@pytest.mark.parametrize(
    ("settings", "iterations"),
    [(HOPPER, 2), (TRACES, 3), (SAUTE, 3), (OPEN, 3)],
    ids=["oracle", "traces", "saute", "open"],
)
def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(settings, iterations, tmp_path, monkeypatch):
    """With physics, and with episodes that run on across the stop; with a pool and a store; with a budget."""
    config = make_config(**settings)
    assert loop.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, iterations)
        assert not loop.train(config, tmp_path / "cut")
    assert [row["iteration"] for row in metrics.read(tmp_path / "cut/metrics.jsonl")] == list(range(iterations))
    assert loop.train(config, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, capsys):
    config = make_config(**PROBE)
    assert loop.train(config, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "hurt")
    newest = tmp_path / "hurt/checkpoints" / str(config.iterations)
    for path in newest.rglob("*"):
        if path.is_file() and "ocdbt" not in path.name and path.stat().st_size > 100:
            path.write_bytes(b"\0" * 50)
    said: list[str] = []
    assert restore.load(tmp_path / "hurt", "latest", None, said.append).iterations[0] < config.iterations
    assert "skipped" in said[0] and newest.exists(), "whoever only reads moves nothing"
    # The run is said to have begun on a machine with another number of cores.
    about = tmp_path / "hurt/run.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "devices": 5}))
    assert "devices and goes on" not in capsys.readouterr().out
    assert loop.train(config, tmp_path / "hurt")
    printed = " ".join(capsys.readouterr().out.split())
    assert "damaged" in printed
    assert f"started with 5 devices and continues with {jax.device_count()}: the last digits may differ" in printed
    assert_same_run(tmp_path / "run", tmp_path / "hurt")


def test_a_checkpoint_of_other_shapes_is_not_called_damaged(tmp_path):
    """As when a later version has another default for a field that config.json does not know."""
    config = make_config(**PROBE)
    assert loop.train(config, tmp_path / "run")
    path = tmp_path / "run/config.json"
    wider = json.loads(path.read_text())
    wider["policy"]["hidden"] = [9]
    path.write_text(json.dumps(wider))
    before = sorted((tmp_path / "run/checkpoints").iterdir())
    says = r"4 is of another version of this program, .*: (solver|kept)\..* is \[1, 8\] there and \[1, 9\] here\."
    with pytest.raises(errors.UserError, match=says):
        restore.load(tmp_path / "run", "latest", None, pytest.fail)
    with pytest.raises(errors.UserError, match=says):
        loop.train(make_config(**{**PROBE, "policy": {"hidden": (9,)}}), tmp_path / "run")
    assert sorted((tmp_path / "run/checkpoints").iterdir()) == before


def test_folder_of_another_config_is_left_alone(tmp_path):
    config = make_config(**PROBE)
    make_folder(config, tmp_path / "run")
    before = (tmp_path / "run/config.json").read_text()
    with pytest.raises(errors.UserError, match=r"ppo\.passes=2, not 3"):
        loop.train(make_config(**{**PROBE, "ppo": {"minibatch": 20, "passes": 3}}), tmp_path / "run")
    assert (tmp_path / "run/config.json").read_text() == before
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json", "run.lock"]
    # How it is watched may change, and what is collected elsewhere.
    make_folder(make_config(**{**PROBE, "run": {"keep": 5}, "collect": {"moments": 3}}), tmp_path / "run")


def test_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(errors.UserError, match="is not a run"):
        loop.train(make_config(**PROBE), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_non_finite_run_stops_and_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    """The parameters are poisoned in iteration 2; iterations 0 and 1 were good."""
    from traces_jax.core import parallel

    real = parallel.Program.chunk

    def chunk(self, state, start, length):
        if start == 2:
            state = with_agent(state, jax.tree.map(lambda leaf: leaf * np.nan, state.agent))
        return real(self, self.place(state), start, length)

    monkeypatch.setattr(parallel.Program, "chunk", chunk)
    with pytest.raises(errors.UserError, match=r"non-finite \(seed=0 in iteration 2\).*checkpoints/2"):
        loop.train(make_config(**PROBE), tmp_path / "run")
    assert rows_written(tmp_path / "run") == 2


def test_best_keeps_the_best_feasible_state(tmp_path):
    config = make_config(**PROBE)
    assert loop.train(config, tmp_path / "run")
    returns = [row["window/return"] for row in metrics.read(tmp_path / "run/metrics.jsonl")]
    loaded = restore.load(tmp_path / "run", "best", None, print)
    assert loaded.iterations.tolist() == [1 + int(np.argmax(returns))]


def test_evaluation_of_a_finished_run(tmp_path):
    config = make_config(**{**PROBE, "seeds": 2})
    assert loop.train(config, tmp_path / "run")
    saved = json.loads((tmp_path / "run/evaluation.json").read_text())
    raw = np.load(tmp_path / "run/evaluation.npz")
    assert raw["return"].shape == (2, 2)
    assert saved["settings"][0]["return"]["mean"] == pytest.approx(raw["return"].mean(axis=1).mean())
    assert saved["settings"][0]["return"]["std"] == pytest.approx(raw["return"].mean(axis=1).std())
    np.testing.assert_array_equal(raw["return"], raw["cost"])  # the probe pays one unit of cost for one of reward


def test_load_one_seed_and_one_step(tmp_path):
    config = make_config(**{**PROBE, "seeds": 2})
    assert loop.train(config, tmp_path / "run")
    everything = restore.load(tmp_path / "run", "2", None, print)
    second = restore.load(tmp_path / "run", "2", 1, print)
    assert [lane.name for lane in second.built.lanes] == ["seed=1"]
    for whole, part in zip(jax.tree.leaves(everything.state.agent), jax.tree.leaves(second.state.agent), strict=True):
        np.testing.assert_array_equal(whole[1:], part)
    with pytest.raises(errors.UserError, match=r"--step=99 .* 1, 2, 3, 4"):
        restore.load(tmp_path / "run", "99", None, print)
    with pytest.raises(errors.UserError, match=r"--seed=7 .* 0, 1"):
        restore.load(tmp_path / "run", "latest", 7, print)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config.ppo.clop=1"], "field 'ppo.clop' does not exist; did you mean 'ppo.clip'?"),
        (["--config.task=SafetyAntVelocty-v1"], "SafetyAntVelocity-v1"),
        (["--config.ppo.minibatch=7"], "does not divide"),
        (["--config=experiments/nothing.py"], "--config=experiments/nothing.py does not exist"),
        (["--config.environment.steps=500"], "no episode of 1000 steps would ever end"),
        (["--config.labels.limit=50"], "it is called 'constraint.cost_limit' now."),
        (["--config.steps=1e5", "--config.run.chunk=7"], "run.chunk=7 does not divide the 5 iterations of the run"),
        (["--config.estimator.decoder=()"], "estimator.decoder=() is not right: it must be a tuple of one or more"),
        (["--config.refit.store=1e9"], "refit.store=1000000000 is not right: the run would need about"),
        (["--sedes=3"], "sedes"),
        (["--seeds=3"], "--seeds is not a flag; did you mean --config.seeds?"),
        ([], "--config is missing"),
    ],
)
def test_bad_command_lines_say_one_sentence_and_leave_nothing(arguments, sentence, tmp_path, environment):
    config = [] if not arguments or arguments[0].startswith("--config=") else ["--config", "experiments/ant.py"]
    result = subprocess.run(
        [sys.executable, "-m", "traces_jax.train", *config, *arguments, f"--run_dir={tmp_path / 'run'}"],
        env=environment, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 2
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_help_shows_the_flags(environment):
    result = subprocess.run(
        [sys.executable, "-m", "traces_jax.train", "--help"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0 and not result.stderr
    assert "--run_dir" in result.stdout and "The same command resumes" in result.stdout
