"""What a run folder survives: kills at any moment, damage, other processes, other commands."""

import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from helpers import assert_same_run, command, make_config, make_folder, wait_for, with_agent

from benchmarks import remains
from traces_jax.host import cli, errors, files, runtime
from traces_jax.host.data import arrays, prior
from traces_jax.host.report import make
from traces_jax.host.run import best, checkpoint, evaluation, loop, metrics, restore
from traces_jax.host.run import folder as folder_lib
from traces_jax.host.show import render
from traces_jax.host.sinks import tensorboard

PROBE = {
    "task": "ProbeBudget",
    "steps": 160,
    "environment": {"count": 2, "steps": 20},
    "ppo": {"minibatch": 20, "passes": 2},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
    "constraint": {"cost_limit": 100.0},
    "run": {"checkpoint_every": 1, "evaluation_episodes": 2, "keep": 4},
}


def events(folder: pathlib.Path) -> list[tuple[int, str, float]]:
    """The scalars in TensorBoard's files of a lane, in their order."""
    return [scalar for path in sorted(folder.iterdir()) for scalar in remains.events(path)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> pathlib.Path:
    """A finished run of two seeds."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert loop.train(make_config(**PROBE, seeds=2), folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path) -> pathlib.Path:
    """One of one's own."""
    return shutil.copytree(finished, tmp_path / "run")


def forget(folder: pathlib.Path, after: int) -> None:
    """Makes the run one that was killed after its checkpoint `after`."""
    for path in (folder / "checkpoints").iterdir():
        if path.name.isdigit() and int(path.name) > after:
            shutil.rmtree(path)


def test_tensorboard_shows_the_whole_history_of_a_resumed_run(finished, copied):
    whole = events(finished / "tensorboard/seed=1")
    steps = [step for step, name, _ in whole if name == "episode/return"]
    assert steps == [40, 80, 120, 160]
    forget(copied, 2)
    assert loop.train(make_config(**PROBE, seeds=2), copied)
    assert events(copied / "tensorboard/seed=1") == whole


def test_tensorboard_is_whole_before_the_last_state_is_saved(finished, tmp_path, monkeypatch):
    """A run that is killed after that save never opens TensorBoard's files again."""
    seen = []

    def save(self, iteration, state, **notes):
        if iteration == 4 and self._folder.name == "checkpoints":
            seen.extend(events(tmp_path / "run/tensorboard/seed=1"))
        return real(self, iteration, state, **notes)

    real = checkpoint.Checkpoints.save
    monkeypatch.setattr(checkpoint.Checkpoints, "save", save)
    assert loop.train(make_config(**PROBE, seeds=2), tmp_path / "run")
    assert seen == events(finished / "tensorboard/seed=1")


def test_a_finished_run_stays_as_it_is(copied, capsys):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != "run.lock"}
    assert loop.train(make_config(**PROBE, seeds=2), copied)
    after = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file() and path.name != "run.lock"}
    assert after == before
    assert "resuming" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("step", "seed", "episodes", "where"),
    [
        ("deployed", None, 2, "evaluation"),
        ("deployed", None, 3, "evaluation"),
        ("deployed", None, 1, "evaluations/deployed-4-episodes-1"),
        ("4", None, 3, "evaluations/step-4-episodes-3"),
        ("latest", None, 1, "evaluations/step-4-episodes-1"),
        ("latest", 1, 3, "evaluations/step-4-seed-1-episodes-3"),
        ("2", None, 3, "evaluations/step-2-episodes-3"),
        ("best", None, 3, "evaluations/best-episodes-3"),
        ("best", 1, 3, "evaluations/best-seed-1-episodes-3"),
    ],
)
def test_what_was_evaluated_is_part_of_where_it_is_saved(step, seed, episodes, where, copied):
    loaded = restore.load(copied, step, seed, pytest.fail)
    place = evaluation.place(copied, step, seed, loaded.iterations, episodes, newest=loaded.newest)
    assert place == copied / where
    before = (copied / "evaluation.npz").read_bytes()
    evaluation.evaluate(loaded.built, loaded.state, place, iterations=loaded.iterations, count=episodes)
    assert (where == "evaluation") == ((copied / "evaluation.npz").read_bytes() != before) or episodes == 2
    saved = json.loads((copied / f"{where}.json").read_text())
    assert saved["episodes"] == episodes and len(saved["lanes"]) == (1 if seed is not None else 2)


def test_each_lane_has_its_own_best(tmp_path):
    """Lanes are feasible at different times; their returns are never compared with each other."""
    config = make_config(**PROBE, seeds=2)
    from traces_jax.host.run import build

    built = build.build(config)
    states = [built.program.init()]
    for index in range(3):
        state = jax.tree.map(lambda leaf: leaf.copy(), states[-1])
        states.append(built.program.chunk(state, index, 1)[0])
    kept = best.Best(tmp_path / "best", built.program.abstract(), 2, "id")
    kept.consider(1, states[1], np.asarray([0.0, 1.0]), np.asarray([5.0, 50.0]))
    kept.consider(2, states[2], np.asarray([-1.0, -1.0]), np.asarray([4.0, 2.0]))
    kept.close()
    # A run that goes on finds what was best before.
    kept = best.Best(tmp_path / "best", built.program.abstract(), 2, "id")
    kept.consider(3, states[3], np.asarray([1.0, -1.0]), np.asarray([9.0, 1.0]))
    kept.close()
    saved = checkpoint.Checkpoints(tmp_path / "best", identity="id", read_only=True)
    assert saved.iterations() == [2]
    assert best.iterations(saved.notes(2), 2, 2).tolist() == [1, 2]
    restored = saved.restore(built.program.abstract(), 2)
    for held, first, second in zip(
        *map(jax.tree.leaves, (restored.agent, states[1].agent, states[2].agent)), strict=True
    ):
        np.testing.assert_array_equal(held[0], first[0])
        np.testing.assert_array_equal(held[1], second[1])


def test_a_lane_without_a_best_state_is_left_out(finished, tmp_path):
    config = make_config(**PROBE, seeds=2)
    folder = tmp_path / "run"
    make_folder(config, folder)
    loaded = restore.load(finished, "latest", None, pytest.fail)
    kept = best.Best(folder / "best", loaded.built.program.abstract(), 2, None)
    kept.consider(1, loaded.state, np.asarray([1.0, 0.0]), np.asarray([5.0, 5.0]))
    kept.close()
    said: list[str] = []
    assert [lane.name for lane in restore.load(folder, "best", None, said.append).built.lanes] == ["seed=1"]
    assert said == ["seed=0 satisfied its constraint at no checkpoint, so it has no best state."]
    with pytest.raises(errors.UserError, match="--step=best is not possible for seed 0"):
        restore.load(folder, "best", 0, said.append)


def test_without_any_best_state_it_says_why(copied):
    shutil.rmtree(copied / "best")
    with pytest.raises(errors.UserError, match=r"--step=best is not possible .* no seed satisfied its constraint"):
        restore.load(copied, "best", None, pytest.fail)


def test_another_chunk_ends_where_it_should(copied, finished):
    """One of four iterations is done; chunks of two would end after the fifth."""
    forget(copied, 1)
    more = {**PROBE, "run": {**PROBE["run"], "chunk": 2, "checkpoint_every": 2}}
    assert loop.train(make_config(**more, seeds=2), copied)
    assert_same_run(finished, copied)


def test_a_finished_run_can_be_given_more_steps(copied, capsys):
    longer = make_config(**{**PROBE, "steps": 240}, seeds=2)
    assert loop.train(longer, copied)
    assert "the run is extended from 160 to 240 steps; ppo.actor_lr" in capsys.readouterr().out
    assert [row["iteration"] for row in metrics.read(copied / "metrics.jsonl") if row["lane"] == "seed=0"] == [
        *range(6)
    ]
    assert folder_lib.load_config(copied).steps == 240
    with pytest.raises(errors.UserError, match="steps=240, not 160"):
        loop.train(make_config(**PROBE, seeds=2), copied)


@pytest.mark.parametrize("left", [".config.json@host.123.tmp", "config.json.tmp"])
def test_killed_while_the_folder_is_made(left, tmp_path):
    """Before config.json has its name there is a lock and a temporary file; the same command goes on."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.lock").touch()
    (folder / left).write_text("{")
    make_folder(make_config(**PROBE), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "run.lock"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[1, 2]\n", "line 3 is damaged"),
        (b'{"lane": "seed=0"}\n', "line 3 is damaged"),
        (b"\xff\xfe\n", "line 3 is damaged"),
        (b'{"lane": "seed=0", "iterat\n', "line 3 is damaged"),
        (b"[" * 100_000 + b"\n", "line 3 is damaged"),
    ],
    ids=["no row", "no iteration", "no text", "cut", "deep"],
)
def test_rows_that_can_be_kept_are_kept(line, said, finished, copied, capsys):
    path = copied / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    forget(copied, 3)
    assert loop.train(make_config(**PROBE, seeds=2), copied)
    assert said in capsys.readouterr().out
    assert_same_run(finished, copied)


def test_lost_rows_are_named(copied, capsys):
    forget(copied, 3)
    (copied / "metrics.jsonl").unlink()
    assert loop.train(make_config(**PROBE, seeds=2), copied)
    assert "metrics.jsonl is missing: the rows of the first 3 iterations are lost" in capsys.readouterr().out


def hurt(checkpoint_folder: pathlib.Path) -> None:
    for path in checkpoint_folder.rglob("*"):
        if path.is_file() and "ocdbt" not in path.name and path.stat().st_size > 100:
            path.write_bytes(b"\0" * 50)


def test_a_checkpoint_damaged_twice_is_set_aside_twice(copied, capsys):
    for name in ("damaged-checkpoints-4", "damaged-checkpoints-4-2"):
        hurt(copied / "checkpoints/4")
        assert loop.train(make_config(**PROBE, seeds=2), copied)
        assert f"set aside as {name} " in capsys.readouterr().out and (copied / name).is_dir()


def test_where_no_checkpoint_can_be_read_every_try_gets_the_same_answer(copied):
    for path in (copied / "checkpoints").iterdir():
        hurt(path)
    for _ in range(2):
        with pytest.raises(errors.UserError, match=r"no checkpoint in .* can be read"):
            loop.train(make_config(**PROBE, seeds=2), copied)


def test_a_checkpoint_of_another_run_is_refused(copied, tmp_path):
    other = tmp_path / "other"
    assert loop.train(make_config(**PROBE, seeds=2), other)
    shutil.rmtree(copied / "checkpoints/4")
    shutil.copytree(other / "checkpoints/4", copied / "checkpoints/4")
    with pytest.raises(errors.UserError, match="checkpoints/4 belongs to another run"):
        loop.train(make_config(**PROBE, seeds=2), copied)
    with pytest.raises(errors.UserError, match="checkpoints/4 belongs to another run"):
        restore.load(copied, "latest", None, pytest.fail)


def test_two_processes_do_not_write_to_one_run(tmp_path):
    folder = tmp_path / "run"
    with folder_lib.locked(folder):
        with pytest.raises(errors.UserError, match=rf"in use by process {os.getpid()} on .* since 20"):
            loop.train(make_config(**PROBE), folder)
        assert [path.name for path in folder.iterdir()] == ["run.lock"]
    # The lock of a process that is dead is nobody's.
    held = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX); os.kill(os.getpid(), 9)"
    child = subprocess.run([sys.executable, "-c", held, str(folder / "run.lock")])
    assert child.returncode == -signal.SIGKILL
    with folder_lib.locked(folder), (folder / "run.lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"[" * 50_000, b"\xff", b"{", b"9" * 5000])
def test_a_config_that_is_none_gets_one_sentence(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(errors.USER_ERRORS) as caught:
        folder_lib.load_config(tmp_path)
    assert len(str(caught.value)) < 500


def test_a_config_that_is_no_file_gets_one_sentence(tmp_path):
    (tmp_path / "a/config.json").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b/config.json")
    for name in "ab":
        with pytest.raises(errors.UserError, match=r"config\.json is damaged"):
            folder_lib.load_config(tmp_path / name)


@pytest.mark.parametrize("content", [b"[]", b"{}", b"[" * 50_000, b"\xff", b'{"iteration": Infinity, "episodes": 1}'])
def test_a_closing_evaluation_that_is_none_counts_as_none(content, tmp_path):
    (tmp_path / "evaluation.json").write_bytes(content)
    assert evaluation.closing(tmp_path) is None


@pytest.mark.parametrize("step", ["²", "-1", "four", "", "1e1"])
def test_a_step_that_is_none_gets_one_sentence(step, finished):
    with pytest.raises(errors.UserError, match="choose deployed, latest, best or one of 1, 2, 3, 4"):
        restore.load(finished, step, None, pytest.fail)


def test_a_link_under_a_temporary_name_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    files.temporary_path(tmp_path / "note.txt").symlink_to(target)
    files.write_text(tmp_path / "note.txt", "new")
    assert target.read_text() == "mine" and (tmp_path / "note.txt").read_text() == "new"


def test_what_cannot_be_written_is_said_with_the_last_good_checkpoint(copied, monkeypatch):
    forget(copied, 2)

    def full(*unused, **unused_too):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorboard.TensorBoard, "add", lambda self, row: None)
    monkeypatch.setattr(checkpoint.ocp.CheckpointManager, "save", full)
    with pytest.raises(
        errors.UserError, match=r"No space left on device; the last good checkpoint is .*checkpoints/2;"
    ):
        loop.train(make_config(**PROBE, seeds=2), copied)


def test_a_lane_that_becomes_non_finite_is_frozen_and_the_others_finish(finished, tmp_path, monkeypatch, capsys):
    from traces_jax.core import parallel

    real = parallel.Program.chunk

    def chunk(self, state, start, length):
        if start == 2:
            poisoned = jax.tree.map(lambda leaf: leaf.at[1].set(np.nan), state.agent.actor.params)
            actor = dataclasses.replace(state.agent.actor, params=poisoned)
            state = with_agent(state, state.agent.replace(actor=actor))
        return real(self, self.place(state), start, length)

    monkeypatch.setattr(parallel.Program, "chunk", chunk)
    folder = tmp_path / "run"
    assert loop.train(make_config(**PROBE, seeds=2), folder)
    said = capsys.readouterr().out
    assert "seed=1 became non-finite in iteration 2; it is not trained any further" in said
    assert "note: seed=1 became non-finite in iteration 2; its state before that was evaluated" in said
    rows = list(metrics.read(folder / "metrics.jsonl"))
    mine, theirs = (
        [row for row in remains.rows(own / "metrics.jsonl") if row["lane"] == "seed=0"] for own in (folder, finished)
    )
    assert mine == theirs
    assert [row["iteration"] for row in rows if row["lane"] == "seed=1"] == [0, 1]
    assert np.load(folder / "evaluation.npz")["diverged"].tolist() == [-1, 2]


def test_a_second_interrupt_ends_at_once(tmp_path, environment):
    folder = tmp_path / "run"
    child = subprocess.Popen(
        command(folder, "--config.steps=8000000"), env=environment, stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: (folder / "metrics.jsonl").exists())
    child.send_signal(signal.SIGSTOP)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGCONT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 3 and "stopped at once; the same command resumes" in output


@pytest.mark.parametrize("place", ["/proc/x", "file/x"])
def test_impossible_folders_get_one_sentence(place, tmp_path, capsys):
    """Permission bits would not do: they do not count for root."""
    (tmp_path / "file").write_text("mine")
    path = tmp_path / place
    with pytest.raises(errors.UserError, match=rf"{place} cannot be written: N\w+ .*\."):
        loop.train(make_config(**PROBE), path)
    with pytest.raises(errors.UserError, match=rf"{place} cannot be written: N\w+ .*\."):
        prior.check_out(path, overwrite=True)
    with pytest.raises(errors.UserError, match=rf"{place} cannot be written: N\w+ .*\."):
        make.check_out(path)
    with pytest.raises(errors.UserError, match="cannot be written"):
        render.check_video_name(path.with_suffix(".mp4"))
    with pytest.raises(errors.UserError, match="cannot be written"):
        arrays.check_out(path.with_suffix(".npz"))
    assert [child.name for child in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_what_can_be_written_leaves_nothing_of_the_trial(tmp_path):
    files.check_can_write(tmp_path / "not/there/yet.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), cli.STOPPED, "interrupted; the same command begins again."),
        (OSError(36, "File name too long", "xx"), cli.BAD_INPUT, "xx cannot be used: File name too long."),
    ],
)
def test_what_ends_a_command_early_is_said_in_one_line(raised, code, said, capsys, monkeypatch):
    def main() -> int:
        raise raised

    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit) as caught:
        cli.run(main)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert caught.value.code == code and capsys.readouterr().err.strip() == f"traces_jax.train: {said}"


def test_threads_that_still_write_after_a_failed_save_say_nothing(monkeypatch):
    """What tensorstore's threads raise then is told once already; all else is told as ever."""
    told: list[types.SimpleNamespace] = []
    monkeypatch.setattr(sys, "__unraisablehook__", told.append)
    closed, other = (
        types.SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "another")
    )
    runtime._say_ignored(closed)
    runtime._say_ignored(other)
    assert told == [other]


@pytest.mark.parametrize("swallow", ["suppress", "collect"])
def test_an_interrupt_that_a_library_swallowed_is_not_lost(swallow, environment):
    """In an `except` of its own, which takes a second Ctrl-C, or in a callback of the garbage collector."""
    script = """
import contextlib, gc, os, signal, sys
from traces_jax.host import cli, runtime

def suppress():
    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

def collect():
    runtime.setup()
    gc.callbacks.append(lambda phase, info: phase == "stop" and os.kill(os.getpid(), signal.SIGINT))
    gc.collect()

swallow = globals()[sys.argv[1]]
sys.argv = ["train.py"]
cli.run(lambda: swallow() or 0)
"""
    child = subprocess.run([sys.executable, "-c", script, swallow], env=environment, capture_output=True, text=True)
    assert child.returncode == cli.STOPPED
    assert child.stderr.strip() == "traces_jax.train: interrupted; the same command begins again."
