"""Recorded trajectories: how they are read, what is refused, and that an estimator learns from them."""

import json
import pathlib
import subprocess
import sys
import tracemalloc
import types

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ROOT, make_config

from traces_jax import config as config_lib
from traces_jax import sources, tasks
from traces_jax.core import normalize
from traces_jax.estimator import pretrain as pretrain_lib
from traces_jax.estimator import refit
from traces_jax.feedback.trajectories import Trajectories, first_true
from traces_jax.host import errors
from traces_jax.host.data import offline, prior
from traces_jax.host.data import pretrain as host

# Ten steps, of which each costs its action, held within 0 and 1.
BUDGET = {
    "task": "ProbeBudget",
    "method": {"source": "traces"},
    "constraint": {"cost_limit": 3.0},
    "labels": {"interval": 2},
    "refit": {"store": 16},
    "pretrain": {"steps": 20, "every": 10, "batch": 8},
}
TASK = tasks.make("ProbeBudget")


def config_of(**changes):
    merged = {
        key: {**BUDGET.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return make_config(**{**BUDGET, **merged})


def record(episodes=40, lengths=None, seed=0):
    """Arrays of some episodes of the probe, a few of them short; and of no use to us, rewards."""
    random = np.random.default_rng(seed)
    lengths = np.full(episodes, 10) if lengths is None else np.asarray(lengths)
    steps, last = lengths.sum(), np.cumsum(lengths) - 1
    # Each episode has a level of its own, so that some are acceptable and some are not.
    level = np.repeat(random.uniform(-0.3, 0.8, len(lengths)), lengths)
    actions = (level + 0.3 * random.normal(size=steps)).astype(np.float32)
    timeouts = np.zeros(steps, bool)
    timeouts[last] = lengths == 10
    terminals = np.zeros(steps, bool)
    terminals[last] = lengths < 10
    return {
        "observations": (5.0 + 2.0 * random.normal(size=(steps, 1))).astype(np.float32),
        "actions": actions[:, None],
        "rewards": np.full(steps, np.nan, np.float32),
        "costs": np.clip(actions, 0, 1),
        "terminals": terminals,
        "timeouts": timeouts,
    }


def write(path: pathlib.Path, arrays, **options) -> pathlib.Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **options)
    return path


def opened(path, config, task=TASK, say=print):
    return offline.opened(path, sources.Traces(task), config, say)


# --- Reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [25, 1 << 14])
@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}], ids=["plain", "packed"])
def test_episodes_come_out_as_they_were_recorded(piece, options, tmp_path, monkeypatch):
    monkeypatch.setattr(offline, "_PIECE", piece)
    lengths = [10, 3, 10, 7, 10, 10, 1, 10]
    arrays = record(lengths=lengths)
    config = config_of()
    with opened(write(tmp_path / "a.hdf5", arrays, **options), config) as recording:
        rows = recording.rows(np.array([3, 0, 7]))
        costs = recording.costs(np.array([3, 0, 7]))
        everything = recording
    first = np.cumsum([0, *lengths])
    np.testing.assert_array_equal(everything.length, lengths)
    for place, episode in enumerate([3, 0, 7]):
        steps = slice(first[episode], first[episode + 1])
        joined = np.concatenate([arrays["observations"][steps], arrays["actions"][steps]], axis=1)
        np.testing.assert_array_equal(rows.inputs[place, : lengths[episode]], joined)
        assert not rows.inputs[place, lengths[episode] :].any()
        np.testing.assert_array_equal(costs[place, : lengths[episode]], arrays["costs"][steps])
        assert np.isnan(costs[place, lengths[episode] :]).all()
    # Prefixes of 2, 4, 6, 8 steps and the whole, which an early end makes violating.
    for episode, length in enumerate(lengths):
        total = np.cumsum(arrays["costs"][first[episode] : first[episode + 1]])
        expected = [total[end - 1] <= 3 for end in (2, 4, 6, 8) if end < length]
        expected.append(total[-1] <= 3 and length == 10)
        np.testing.assert_array_equal(everything.labels[episode][everything.mask[episode]], expected)


def test_statistics_are_those_of_all_observations(tmp_path, monkeypatch):
    monkeypatch.setattr(offline, "_PIECE", 64)
    arrays = record(episodes=50)
    arrays["observations"] += 1000.0
    with opened(write(tmp_path / "a.hdf5", arrays), config_of()) as recording:
        found = recording.statistics
    exact = arrays["observations"].astype(np.float64)
    assert found.count == 500
    np.testing.assert_allclose(found.mean, exact.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(normalize.std(found), exact.std(axis=0, ddof=1), rtol=1e-6)


def late_judge(shown):
    """The first action above 0.9 is a violation."""
    return first_true(jnp.asarray(shown.action[..., 0] > 0.9), jnp.asarray(shown.length))


def test_labels_instead_of_costs(tmp_path, monkeypatch):
    """From a function, and from a file in which some episodes have no label."""
    monkeypatch.setattr(offline, "_PIECE", 25)
    arrays = {name: values for name, values in record(lengths=[10, 3, 10, 10]).items() if name != "costs"}
    data = write(tmp_path / "a.hdf5", arrays)
    with opened(data, config_of(labels={"by": "test_pretrain:late_judge"})) as recording:
        assert np.isnan(recording.costs(np.arange(4))).all()
        for episode, first in enumerate((0, 10, 13, 23)):
            length = recording.length[episode]
            over = np.maximum.accumulate(arrays["actions"][first : first + length, 0] > 0.9)
            expected = [not over[min(end, length) - 1] for end in (2, 4, 6, 8, 10) if end < length or end == 10]
            np.testing.assert_array_equal(recording.labels[episode][recording.mask[episode]], expected)
    lines = [{"episode": 2, "verdict": "from", "step": 4}, {"episode": 0, "verdict": "reject"}]
    (tmp_path / "labels.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with opened(data, config_of(labels={"by": str(tmp_path / "labels.jsonl")})) as recording:
        np.testing.assert_array_equal(recording.labels[2], [1, 1, 0, 0, 0])
        np.testing.assert_array_equal(recording.mask, [[0, 0, 0, 0, 1], [0] * 5, [1] * 5, [0] * 5])
    with (
        pytest.raises(errors.UserError, match=r"labels.by=people is not right"),
        opened(data, config_of(labels={"by": "people"})),
    ):
        pass


def test_steps_without_an_end_are_left_out(tmp_path):
    arrays = record(episodes=4)
    arrays["timeouts"][-1] = False
    # Nobody looks at them either.
    arrays["observations"][35] = np.nan
    said: list[str] = []
    with opened(write(tmp_path / "a.hdf5", arrays), config_of(), say=said.append) as recording:
        assert recording.count == 3
        assert recording.statistics.count == 30
    assert len(said) == 1 and said[0].endswith("the last 10 steps have no end of an episode and are left out")


def test_a_large_file_needs_little_memory(tmp_path):
    """Almost 100 MB, of which a third or so is there at a time at most."""
    task = types.SimpleNamespace(observation_size=64, action_size=16, horizon=100, name="large")
    steps = 300_000
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, width in (("observations", 64), ("actions", 16)):
            file.create_dataset(name, data=np.ones((steps, width), np.float32))
        for name in ("costs", "terminals", "timeouts"):
            file[name] = np.arange(steps) % 100 == 99
    tracemalloc.start()
    try:
        with opened(tmp_path / "a.hdf5", config_of(), task) as recording:
            assert recording.count == 3000
            recording.rows(np.arange(0, 3000, 100))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 5e6 < peak < 40e6, "or memory is not what is measured"


def cut_short(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def overwrite(path):
    """Zeros where a packed piece was."""
    with h5py.File(path) as file:
        place = file["observations"].id.get_chunk_info(0)
    with path.open("r+b") as file:
        file.seek(place.byte_offset)
        file.write(b"\0" * place.size)


def without(name):
    return lambda arrays: {other: values for other, values in arrays.items() if other != name}


def put(name, index, value):
    def change(arrays):
        arrays[name][index] = value
        return arrays

    return change


def replace(name, values):
    return lambda arrays: {**arrays, name: values(arrays[name])}


BAD_FILES = {
    "no costs": (without("costs"), "a.hdf5 has no array 'costs'; it must hold observations, actions, costs, terminals"),
    "wide": (replace("observations", lambda x: np.hstack([x, x])), r"observations has shape \[400, 2\]; it must be"),
    "flat": (replace("actions", np.ravel), r"actions has shape \[400\]; it must be \[400, 1\] for ProbeBudget\."),
    "short": (replace("costs", lambda x: x[:-1]), r"costs has shape \[399\]; it must be \[400\] for ProbeBudget\."),
    "text": (replace("costs", lambda x: np.full(len(x), b"no")), "costs holds .*; it must hold real numbers"),
    "nan observation": (put("observations", (301, 0), np.nan), r"observations\[301, 0\] is nan; all numbers must be"),
    "infinite action": (put("actions", (3, 0), -np.inf), r"actions\[3, 0\] is -inf; all numbers must be finite"),
    "nan cost": (put("costs", 399, np.nan), r"costs\[399\] is nan; all numbers must be finite"),
    "no end": (put("timeouts", slice(None), False), "has no end of an episode: terminals and timeouts are false"),
    "long": (put("timeouts", 29, False), "the episode from step 20 on has 20 steps; ProbeBudget has at most 10"),
    "all accepted": (
        put("costs", slice(None), 0.0),
        r"all 160 labels to learn from say acceptable with constraint.cost_limit=3",
    ),
    "all refused": (put("costs", slice(None), 9.0), "all 160 labels to learn from say violating"),
    "two episodes": (
        lambda arrays: {name: values[:20] for name, values in arrays.items()},
        "has too few episodes, 2; at least 3 are needed",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_one_sentence_and_leave_nothing(case, tmp_path):
    change, says = BAD_FILES[case]
    write(tmp_path / "a.hdf5", change(record()))
    refused(tmp_path, says)


@pytest.mark.parametrize("damage", [cut_short, overwrite, lambda path: path.write_text("not at all")])
def test_damaged_files_are_one_sentence_and_leave_nothing(damage, tmp_path):
    damage(write(tmp_path / "a.hdf5", record(), chunks=True, compression="gzip"))
    refused(tmp_path, r"a.hdf5 is not a complete HDF5 file \(.*\); give one in DSRL's layout\.")


def test_a_missing_file(tmp_path):
    with pytest.raises(errors.UserError, match=r"a.hdf5 does not exist; give an HDF5 file"):
        host.pretrain(config_of(), tmp_path / "a.hdf5", tmp_path / "out")


def refused(folder, says):
    with pytest.raises(errors.UserError, match=says) as caught:
        host.pretrain(config_of(labels={"interval": 2}), folder / "a.hdf5", folder / "out")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert [path.name for path in folder.iterdir()] == ["a.hdf5"]


# --- Fitting -------------------------------------------------------------------------------------------------------


def program_of(config, devices=None):
    source = sources.Traces(TASK)
    statistics = normalize.init((1,))
    return pretrain_lib.Program(
        settings=config.pretrain,
        max_grad_norm=config.refit.max_grad_norm,
        model=source.model(config, statistics),
        devices=devices or jax.devices(),
    )


@pytest.mark.parametrize(
    ("episodes", "share", "sizes"), [(40, 0.1, (32, 4, 4)), (100, 0.5, (25, 25, 50)), (3, 0.9, (1, 1, 1))]
)
def test_what_is_held_out_is_neither_fitted_to_nor_chosen_by(episodes, share, sizes, tmp_path):
    config = config_of(pretrain={"test_share": share})
    arrays = record(episodes=episodes)
    # Both labels in each episode, whichever is fitted to.
    arrays["costs"][:] = 0.5
    with opened(write(tmp_path / "a.hdf5", arrays), config) as recording:
        split = host._split(config, recording)
    assert (len(split.train), len(split.choose), len(split.test)) == sizes
    assert sorted([*split.train, *split.choose, *split.test]) == list(range(episodes))


def test_a_small_memory_means_several_blocks_of_the_same(tmp_path, monkeypatch):
    config = config_of(pretrain={"memory": 1})
    with opened(write(tmp_path / "a.hdf5", record(episodes=44)), config) as recording:
        split = host._split(config, recording)
        program = program_of(config)
        blocks = host._blocks(config, program, recording, split)
        whole = next(blocks)
        assert next(blocks) is whole, "what fits is read once"
        # A thousandth of a megabyte: 12 rows of 80 bytes.
        monkeypatch.setattr(host, "_COPIES", 1000)
        blocks = host._blocks(config, program, recording, split)
        parts = [next(blocks) for _ in range(6)]
    assert [part.count for part in parts] == [12] * 6
    order = np.argsort(np.asarray(whole.inputs)[:, 0, 0])
    for three in (parts[:3], parts[3:]):
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *three)
        again = np.argsort(joined.inputs[:, 0, 0])
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(joined), strict=True):
            np.testing.assert_array_equal(np.asarray(a)[order], b[again])
    assert not np.array_equal(parts[0].inputs, parts[3].inputs), "each time around in another order"


def two_rows():
    """Two whole episodes of the probe, one of them acceptable."""
    return Trajectories(
        inputs=np.random.default_rng(0).normal(size=(2, 10, 2)).astype(np.float32),
        length=np.full(2, 10, np.int32),
        labels=np.asarray([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], np.float32),
        mask=np.ones((2, 5), bool),
    )


def test_devices_that_share_a_batch_make_the_step_of_the_whole_batch():
    """One episode in each device's share, so that what they draw is known."""
    config = config_of(pretrain={"steps": 1, "every": 1, "batch": 2}, estimator={"normalize_inputs": False})
    source = sources.Traces(TASK)
    rows = two_rows()
    # Without spread there is no noise either, which the devices draw apart.
    fitted = source.fresh(config, jax.random.key(1))
    quiet = fitted.params.log_std_head.replace(
        kernel=jnp.zeros_like(fitted.params.log_std_head.kernel), bias=jnp.full((1,), -20.0)
    )
    fitted = fitted.replace(params=fitted.params.replace(log_std_head=quiet))
    program = program_of(config)
    assert len(program.devices) == 2
    state, loss = program.advance(pretrain_lib.begin(fitted), program.place(rows, 2), jax.random.key(0), 0)
    after = state.fitted
    expected, expected_loss = refit.step(
        fitted, rows, jax.random.key(5), lr=3e-3, weight_decay=0.3, max_grad_norm=config.refit.max_grad_norm,
        loss=source.model(config, normalize.init((1,))).loss,
    )  # fmt: skip
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), expected.params, fitted.params)
    assert max(jax.tree.leaves(moved)) > 1e-3
    # Not the weights themselves: Adam's first step makes a sign of the smallest gradients.
    for a, b in zip(jax.tree.leaves(after.optimizer.mu), jax.tree.leaves(expected.optimizer.mu), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7)


def test_the_rate_falls_to_a_tenth():
    program = program_of(config_of(pretrain={"steps": 40, "every": 10, "lr": 0.01}))
    seen: list[np.ndarray] = []
    object.__setattr__(program, "_compiled_steps", lambda state, rows, key, pace: seen.append(pace.rate))
    for done in range(0, 40, 10):
        program.advance(None, None, jax.random.key(0), done)
    rates = np.concatenate(seen)
    assert rates[0] == np.float32(0.01)
    np.testing.assert_allclose(np.diff(rates), -0.009 / 40, rtol=1e-3)


def test_what_is_kept_is_an_average_of_the_last_weights():
    """One step a call, so that the weights in between are seen. The first counts for all, the second for 10 of 11."""
    config = config_of(pretrain={"steps": 400, "every": 1, "batch": 2})
    program = program_of(config)
    state = pretrain_lib.begin(sources.Traces(TASK).fresh(config, jax.random.key(1)))
    placed, weights = program.place(two_rows(), 2), []
    for done in (0, 1, 2000):
        state, _ = program.advance(state, placed, jax.random.key(0), done)
        weights.append(np.asarray(state.fitted.params.mean_head.kernel))
    expected = 0.99 * (weights[0] / 11 + weights[1] * 10 / 11) + 0.01 * weights[2]
    np.testing.assert_allclose(state.result.params.mean_head.kernel, expected, rtol=1e-5)
    assert not np.allclose(expected, weights[2], rtol=1e-4), "or nobody could tell"


def test_wrong_labels_are_for_learning_only(tmp_path):
    config = config_of(labels={"noise": 0.3})
    with opened(write(tmp_path / "a.hdf5", record(episodes=400)), config) as recording:
        split = host._split(config, recording)
        misled = host._mislead(config, recording, split, jax.random.key(0))
    wrong = misled.labels != recording.labels
    assert not wrong[split.test].any()
    assert wrong[split.train].mean() == pytest.approx(0.3, abs=0.03)


@pytest.mark.usefixtures("optimized")
def test_an_estimator_learns_what_is_acceptable(tmp_path, capsys):
    config = config_of(pretrain={"steps": 1200, "every": 100, "batch": 32, "target_accuracy": 0.95})
    host.pretrain(config, write(tmp_path / "a.hdf5", record(episodes=400)), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "estimator.json", "estimator.npz", "store.npz",
    ]  # fmt: skip
    said = json.loads((tmp_path / "out/estimator.json").read_text(), parse_constant=pytest.fail)
    assert said["kind"] == "traces" and said["task"] == "ProbeBudget"
    assert said["trajectories"] == {"fitted": 324, "chosen_by": 36, "held_out": 40, "stored": 16}
    assert said["held_out"]["prefixes"]["accuracy"] >= 0.95 > said["held_out"]["prefixes"]["accepted"] + 0.1
    assert said["steps"] < 1200, "it stops when it is right often enough"
    assert "credit where none" in capsys.readouterr().out
    # All of it once more from the files: other episodes, judged by what was saved.
    saved = prior.read(tmp_path / "out", None, print)
    with opened(write(tmp_path / "b.hdf5", record(episodes=200, seed=1)), config) as recording:
        rows = recording.rows(np.arange(200))
    _, log_probability = saved.source.model(saved.config, saved.prior.statistics).judge(saved.prior.fitted.params, rows)
    right = (log_probability >= np.log(0.5)) == (rows.labels > 0)
    assert right[rows.mask].mean() > 0.9
    # The stored rows are some of those it was fitted to, with their labels.
    with opened(tmp_path / "a.hdf5", config) as recording:
        everything = recording.rows(np.arange(400))
    place = [int(np.flatnonzero((everything.inputs == row).all(axis=(1, 2)))[0]) for row in saved.prior.rows.inputs]
    assert len(set(place)) == 16
    np.testing.assert_array_equal(saved.prior.rows.labels, everything.labels[place])


def test_the_best_estimator_is_kept(tmp_path, monkeypatch):
    """Steps that only spoil it: what is saved is the state after the first of them."""
    config = config_of(pretrain={"steps": 30, "every": 10, "target_accuracy": 1.0})
    said = iter([0.6, 0.8, 0.9, 0.7])
    states = []

    def look(program, recording, chosen, estimator):
        np.testing.assert_array_equal(chosen, split.choose, err_msg="what is held out must not be looked at")
        states.append(jax.device_get(estimator))
        right = np.arange(20).reshape(4, 5) < 20 * next(said) - 0.5
        return np.where(right == (recording.labels[chosen] > 0), 0.0, -9.0), None

    monkeypatch.setattr(host, "_look", look)
    with opened(write(tmp_path / "a.hdf5", record()), config) as recording:
        split = host._split(config, recording)
        fresh = sources.Traces(TASK).fresh(config, jax.random.key(0))
        fit = host._fit(config, program_of(config), recording, split, fresh, jax.random.key(0))
    assert (fit.steps, fit.accuracy) == (20, pytest.approx(0.9))
    for kept, seen in zip(jax.tree.leaves(fit.fitted.params), jax.tree.leaves(states[2]), strict=True):
        np.testing.assert_array_equal(kept, seen)


def test_pretraining_may_begin_with_another_estimator(tmp_path):
    """With no steps it is saved as it was, scaled as it was; and the folder to be made is not asked for."""
    first, second = tmp_path / "first", tmp_path / "second"
    before = write(tmp_path / "a.hdf5", record())
    host.pretrain(config_of(estimator={"init": str(first)}), before, first)
    others = record(seed=1)
    others["observations"] += 10.0
    config = config_of(estimator={"init": str(first)}, pretrain={"steps": 0})
    host.pretrain(config, write(tmp_path / "b.hdf5", others), second)
    made, kept = (prior.read(folder, None, print).prior for folder in (first, second))
    for a, b in zip(
        jax.tree.leaves((made.fitted, made.statistics)), jax.tree.leaves((kept.fitted, kept.statistics)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(made.rows.inputs, kept.rows.inputs)
    described = [json.loads((folder / "estimator.json").read_text()) for folder in (first, second)]
    assert described[0]["steps"] in (0, 10, 20) and described[1]["steps"] == 0


def test_nothing_is_fitted_once_the_target_is_reached(tmp_path):
    config = config_of(pretrain={"target_accuracy": 0.0})
    data, out = write(tmp_path / "a.hdf5", record()), tmp_path / "out"
    host.pretrain(config, data, out)
    assert json.loads((out / "estimator.json").read_text())["steps"] == 0
    # It took long to make: it is replaced only when asked.
    made = (out / "estimator.npz").read_bytes()
    with pytest.raises(errors.UserError, match=r"out exists; choose another, or replace it with --overwrite\."):
        host.pretrain(config_of(seed=1), data, out)
    assert (out / "estimator.npz").read_bytes() == made
    host.pretrain(config_of(seed=1, pretrain={"target_accuracy": 0.0}), data, out, overwrite=True)
    assert (out / "estimator.npz").read_bytes() != made


def test_a_loss_that_explodes_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pretrain_lib.Program, "advance", lambda self, state, rows, key, done: (state, np.float32(np.nan))
    )
    write(tmp_path / "a.hdf5", record())
    refused(tmp_path, r"the loss became nan within 10 steps; choose a smaller pretrain.lr than 0.003\.")


def test_folders_of_others_are_left_alone(tmp_path):
    write(tmp_path / "a.hdf5", record())
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("precious")
    with pytest.raises(errors.UserError, match=r"--out=.*out exists and is not an estimator; choose another folder\."):
        host.pretrain(config_of(), tmp_path / "a.hdf5", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_the_true_cost_needs_no_estimator(tmp_path):
    write(tmp_path / "a.hdf5", record())
    with pytest.raises(config_lib.ConfigError, match=r"method.source=oracle is not right: it learns no estimator"):
        host.pretrain(config_of(method={"source": "oracle"}), tmp_path / "a.hdf5", tmp_path / "out")


def test_command_line(tmp_path, environment):
    write(tmp_path / "a.hdf5", record())
    write(tmp_path / "bad.hdf5", without("costs")(record()))

    def command(data, steps=20, out=("--out", "out")):
        settings = [
            "task=ProbeBudget",
            "constraint.cost_limit=3",
            "labels.interval=2",
            f"pretrain.steps={steps}",
            "pretrain.every=10",
        ]
        program = [
            sys.executable, "-m", "traces_jax.pretrain", "--config", str(ROOT / "experiments/hopper.py"), "--data",
            data, *out, *(f"--config.{setting}" for setting in settings),
        ]  # fmt: skip
        return subprocess.run(program, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)

    wrong = command("bad.hdf5")
    assert wrong.returncode == 2
    needed = "observations, actions, costs, terminals, timeouts"
    assert wrong.stderr == f"traces_jax.pretrain: bad.hdf5 has no array 'costs'; it must hold {needed}.\n"
    assert not (tmp_path / "out").exists()
    done = command("a.hdf5")
    assert done.returncode == 0, done.stderr
    assert "estimator: out" in done.stdout and "step 20/20  loss" in done.stdout
    assert prior.read(tmp_path / "out", None, print).config.constraint.cost_limit == 3.0
    # Who only looks makes nothing.
    there = sorted(tmp_path.rglob("*"))
    looked = command("a.hdf5", steps=0, out=())
    assert looked.returncode == 0, looked.stderr
    assert "after 0 steps" in looked.stdout and sorted(tmp_path.rglob("*")) == there
    assert "--out is missing" in command("a.hdf5", out=()).stderr
