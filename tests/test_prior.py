"""Where a run starts from: folders of pretraining, other runs, the authors' files; and everything that does not fit."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_same_run, make_config
from test_import_torch import SHARED, estimator_arrays, save_arrays
from test_run import stop_after

from traces_jax import config as config_lib
from traces_jax import score, sources, tasks
from traces_jax.core import optimize
from traces_jax.core.normalize import RunningStatistics
from traces_jax.estimator import network
from traces_jax.feedback.trajectories import Trajectories
from traces_jax.host import errors
from traces_jax.host.data import import_torch, prior
from traces_jax.host.run import build, loop, restore
from traces_jax.sources import Prior

BUDGET = {
    "task": "ProbeBudget",
    "steps": 480,
    "environment": {"count": 4, "steps": 20},
    "ppo": {"minibatch": 20, "passes": 2},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
    "method": {"source": "traces"},
    "constraint": {"cost_limit": 3.0},
    "labels": {"interval": 2},
    "query": {"fraction": 0.25, "batch": 4},
    "refit": {"store": 6, "passes": 2, "steps": 3, "new_batch": 2, "stored_batch": 4},
    "run": {"checkpoint_every": 1, "tensorboard": False, "evaluation_episodes": 0},
}
AS_PUBLISHED = {"decoder_reads": "summary", "normalize_inputs": False}


def config_of(**changes):
    merged = {
        key: {**BUDGET.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return make_config(**{**BUDGET, **merged})


def random_prior(config, count=9):
    """Every number another, so that none can be mistaken for another or for a fresh one."""
    random = np.random.default_rng(3)
    task = tasks.make(config.task)
    source = sources.Traces(task)
    shapes = jax.eval_shape(lambda: source.fresh(config, jax.random.key(0)))
    fitted = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    # Mean squares are positive.
    squares = jax.tree.map(np.abs, fitted.optimizer.nu)
    fitted = fitted.replace(optimizer=fitted.optimizer._replace(count=np.int32(77), nu=squares))
    prefixes = len(source.ends(config))
    return Prior(
        fitted=fitted,
        statistics=RunningStatistics(
            count=np.float32(900),
            mean=random.normal(size=task.observation_size).astype(np.float32),
            squares=np.full(task.observation_size, 5000, np.float32),
        ),
        rows=Trajectories(
            inputs=random.normal(size=(count, task.horizon, task.observation_size + task.action_size)).astype("f4"),
            length=np.arange(1, count + 1, dtype=np.int32),
            labels=random.integers(0, 2, (count, prefixes)).astype(np.float32),
            mask=np.ones((count, prefixes), bool),
        ),
    )


def save(folder, config, **changes):
    saved = random_prior(config).replace(**changes)
    prior.save(folder, config, saved, {})
    return saved


def assert_equal(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def test_a_folder_comes_back_bit_for_bit(tmp_path):
    config = config_of()
    saved = save(tmp_path / "estimator", config)
    found = prior.read(tmp_path / "estimator", None, pytest.fail)
    assert_equal(found.prior, saved)
    assert config_lib.to_dict(found.config) == config_lib.to_dict(config)
    assert sorted(path.name for path in (tmp_path / "estimator").iterdir()) == [
        "estimator.json", "estimator.npz", "store.npz",
    ]  # fmt: skip


@pytest.mark.parametrize("store", [6, 12])
def test_every_lane_starts_from_it_with_a_policy_of_its_own(store, tmp_path):
    config = config_of(seeds=2, refit={"store": store}, estimator={"init": str(tmp_path / "estimator")})
    saved = save(tmp_path / "estimator", config)
    built = build.build(config)
    state = built.program.init(prior.load(config, built.task, pytest.fail))
    kept = min(store, 9)
    places = np.arange(9 - kept, 9) % store
    for lane in range(2):
        own = jax.tree.map(lambda leaf, lane=lane: leaf[lane], state.replace(key=None))
        assert_equal(own.source.fitted, saved.fitted)
        assert_equal(own.normalizers.observation, saved.statistics)
        assert_equal(
            jax.tree.map(lambda leaf: leaf[places], own.source.store.rows),
            jax.tree.map(lambda leaf: leaf[9 - kept :], saved.rows),
        )
        assert (int(jnp.sum(own.source.store.rows.valid)), int(own.source.store.written)) == (kept, 9)
        assert int(own.source.labelled) == int(own.source.queries) == 0
    actors = jax.tree.leaves(state.agent.actor.params)
    assert any(not np.array_equal(leaf[0], leaf[1]) for leaf in actors)
    # All else is as in a run that starts from nothing.
    fresh = built.program.init()
    assert_equal(state.agent, fresh.agent)
    assert_equal(state.runner, fresh.runner)
    assert not np.array_equal(fresh.source.fitted.params.mean_head.kernel, state.source.fitted.params.mean_head.kernel)


def test_a_run_goes_on_without_the_folder(tmp_path, monkeypatch):
    config = config_of(estimator={"init": str(tmp_path / "estimator")})
    save(tmp_path / "estimator", config)
    assert loop.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert not loop.train(config, tmp_path / "cut")
    shutil.rmtree(tmp_path / "estimator")
    assert loop.train(config, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    with pytest.raises(errors.UserError, match="does not exist"):
        loop.train(config, tmp_path / "another")


def test_a_run_can_start_from_a_run(tmp_path):
    """With its first seed's newest estimator, statistics and store, the newest rows of which survive."""
    first = config_of(seeds=2, refit={"store": 7})
    assert loop.train(first, tmp_path / "first")
    loaded = restore.load(tmp_path / "first", "latest", 0, print)
    then = jax.tree.map(lambda leaf: np.asarray(leaf[0]), loaded.state.replace(key=None))
    written = int(then.source.store.written)
    assert written == 12, "or the ring has not come around"
    config = config_of(refit={"store": 4}, estimator={"init": str(tmp_path / "first")})
    built = build.build(config)
    start = built.program.init(prior.load(config, built.task, pytest.fail))
    own = jax.tree.map(lambda leaf: np.asarray(leaf[0]), start.replace(key=None))
    assert_equal(own.source.fitted, then.source.fitted)
    assert_equal(own.normalizers.observation, then.normalizers.observation)
    newest = np.arange(written - 4, written) % 7
    # The seven that are left are put in from the oldest to the newest.
    places = np.arange(7 - 4, 7) % 4
    assert_equal(
        jax.tree.map(lambda leaf: leaf[places], own.source.store.rows),
        jax.tree.map(lambda leaf: leaf[newest], then.source.store.rows),
    )


def test_a_run_can_start_from_a_file_of_pytorch(tmp_path):
    save_arrays(tmp_path / "a.pt", estimator_arrays(features=2, hidden=4, layers=2, decoder=(64, 64)))
    config = config_of(estimator={"init": str(tmp_path / "a.pt"), **AS_PUBLISHED})
    built = build.build(config)
    state = built.program.init(prior.load(config, built.task, pytest.fail))
    own = jax.tree.map(lambda leaf: leaf[0], state.replace(key=None))
    assert_equal(own.source.fitted, optimize.init(import_torch.estimator(tmp_path / "a.pt")))
    assert not own.source.store.rows.valid.any() and own.normalizers.observation.count == 0
    assert loop.train(config, tmp_path / "run")


@pytest.mark.skipif(not SHARED.exists(), reason="the authors' estimators are not beside the repository")
def test_the_authors_estimator_of_the_ant():
    path = SHARED / "estimators" / "SafetyAntVelocity-v1_DistributionGRU_4_2_128.pt"
    config = make_config(
        task="SafetyAntVelocity-v1", method={"source": "traces"}, estimator={"init": str(path), **AS_PUBLISHED}
    )
    found = prior.load(config, build.make_task(config, "native"), pytest.fail)
    assert found is not None
    assert_equal(found.fitted.params, jax.device_get(import_torch.estimator(path)))


def test_a_note_where_tasks_differ_in_name_alone(tmp_path):
    saved = config_of(task="ProbeDiscount", environment={"steps": 20})
    same_sizes = config_of(task="ProbeDiscount", estimator={"init": str(tmp_path / "a"), "clamp": -5.0})
    save(tmp_path / "a", saved)
    said: list[str] = []
    prior.load(same_sizes, tasks.make("ProbeDiscount"), said.append)
    assert said == [f"note: {tmp_path / 'a'} was fitted with estimator.clamp=-7.0"]
    # ProbeConstant and ProbeObservation have one step both.
    save(tmp_path / "b", config_of(task="ProbeConstant"))
    said.clear()
    config = config_of(task="ProbeObservation", estimator={"init": str(tmp_path / "b")})
    prior.load(config, tasks.make("ProbeObservation"), said.append)
    assert said == [f"note: {tmp_path / 'b'} was fitted to ProbeConstant, not ProbeObservation"]


OTHERS = {
    "hidden": ({"estimator": {"hidden": 5}}, r"fitted with estimator.hidden=4, not 5; choose the same"),
    "decoder": ({"estimator": {"decoder": (8,)}}, r"fitted with estimator.decoder=\(64, 64\), not \(8,\)"),
    "reads": ({"estimator": {"decoder_reads": "summary"}}, "estimator.decoder_reads=step, not summary"),
    "scaling": ({"estimator": {"normalize_inputs": False}}, "estimator.normalize_inputs=true, not false"),
    "limit": ({"constraint": {"cost_limit": 4.0}}, r"fitted with constraint.cost_limit=3.0, not 4.0"),
    "swept limit": ({"sweep": "constraint.cost_limit=3,5"}, r"fitted with constraint.cost_limit=3.0, not 5.0"),
    "interval": ({"labels": {"interval": 5}}, "labels.interval=2, not 5"),
    "task": (
        {"task": "ProbeHistory", "environment": {"steps": 16}, "steps": 384, "ppo": {"minibatch": 16}},
        r"is for ProbeBudget \(1 features of observation, 1 of action, 10 steps\); ProbeHistory has others \(.*8 s",
    ),
    "oracle": ({"method": {"source": "oracle"}}, "is not right with method.source=oracle, which has no estimator"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_estimators_that_do_not_fit_leave_no_run(case, tmp_path):
    changes, says = OTHERS[case]
    save(tmp_path / "estimator", config_of())
    changes = {**changes, "estimator": {**changes.get("estimator", {}), "init": str(tmp_path / "estimator")}}
    refused(tmp_path, config_of(**changes), says)


PT = {
    "settings": (
        {},
        r"a.pt is not right with estimator.hidden=4, estimator.decoder=\(64, 64\), estimator.decoder_reads=step, "
        r"estimator.normalize_inputs=true; 2, \(5, 4\), summary, false would be right\.",
        2,
    ),
    "features": (
        AS_PUBLISHED,
        r"a.pt reads 3 features of a step; ProbeBudget has 1 of observation and 1 of action\.",
        3,
    ),
}


@pytest.mark.parametrize("case", PT)
def test_files_of_pytorch_that_do_not_fit_leave_no_run(case, tmp_path):
    settings, says, features = PT[case]
    save_arrays(tmp_path / "a.pt", estimator_arrays(features=features))
    refused(tmp_path, config_of(estimator={"init": str(tmp_path / "a.pt"), **settings}), says)


def describe(content):
    """Puts something else in the place of the description."""
    return lambda folder: (folder / "estimator.json").write_bytes(content)


def cut(folder):
    content = (folder / "estimator.npz").read_bytes()
    (folder / "estimator.npz").write_bytes(content[: len(content) // 2])


def poison(folder):
    with np.load(folder / "estimator.npz") as file:
        arrays = dict(file)
    arrays["fitted.params.mean_head.bias"] = np.full(1, np.nan, np.float32)
    np.savez(folder / "estimator.npz", **arrays)


def shorten(folder):
    with np.load(folder / "store.npz") as file:
        arrays = dict(file)
    arrays["labels"] = arrays["labels"][:, :2]
    np.savez(folder / "store.npz", **arrays)


DAMAGES = {
    describe(b'{"kind": "traces"}'): "estimator.json is damaged: it does not say what the estimator was fitted with",
    describe(b"[1]"): "estimator.json is damaged: it does not say what the estimator was fitted with",
    describe(b"{"): "estimator.json is damaged: Expecting",
    describe(b"\xff"): "estimator.json is damaged: 'utf-8' codec",
    describe(b"[" * 50_000): "estimator.json is damaged: maximum recursion depth",
    describe(b"9" * 5000): "estimator.json is damaged: Exceeds the limit",
    cut: "estimator.npz is not a complete zip archive; pretrain again",
    poison: "estimator.npz is damaged: fitted.params.mean_head.bias holds numbers that are not finite",
    shorten: r"store.npz is damaged: labels must be float32 \[9, 5\]",
    lambda folder: (folder / "store.npz").unlink(): "store.npz cannot be read: No such file or directory; pre",
    lambda folder: (folder / "estimator.json").unlink(): "is not a run folder: it has no config.json",
    shutil.rmtree: "estimator does not exist; none, a folder of pretrain or of a run, or a .pt file would be right",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_leave_no_run(damage, tmp_path):
    save(tmp_path / "estimator", config_of())
    damage(tmp_path / "estimator")
    refused(tmp_path, config_of(estimator={"init": str(tmp_path / "estimator")}), DAMAGES[damage])


def refused(folder: pathlib.Path, config, says):
    before = sorted(folder.rglob("*"))
    with pytest.raises(errors.UserError, match=says) as caught:
        loop.train(config, folder / "run")
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert sorted(folder.rglob("*")) == before


def test_scores_of_a_folder(tmp_path):
    """Inputs are read as in pretraining: scaled observations, bounded actions, its own clamp."""
    config = config_of(estimator={"clamp": -3.0, "action_clip": 0.5})
    saved = save(tmp_path / "estimator", config)
    judge = score.load(tmp_path / "estimator", None)
    assert judge.config.estimator.clamp == -3.0 and judge.features == 2
    assert_equal(judge.params, saved.fitted.params)
    inputs = np.array([[[0.5, 2.0]]], np.float32)
    scale = np.sqrt(5000 / 899)
    np.testing.assert_allclose(judge.prepare(inputs), [[[(0.5 - saved.statistics.mean[0]) / scale, 0.5]]], rtol=1e-5)
    assert isinstance(judge.params, network.Estimator)
    with pytest.raises(errors.UserError, match="--seed=1 is for run folders"):
        score.load(tmp_path / "estimator", 1)
