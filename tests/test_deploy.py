"""Policies outside of training: in Python, and as files. They must play what evaluations play."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from helpers import make_config, make_folder
from jax import lax

import traces_jax
from traces_jax.core import rollout
from traces_jax.host.deploy import export, saved
from traces_jax.host.deploy.policy import Policy
from traces_jax.host.run import build, checkpoint
from traces_jax.tasks import probe


class Wander(probe.History):
    """Observations that wander, from a random start, with the actions."""

    observation_size = 2

    def _start(self, rng):
        return jax.random.normal(rng, (2,))

    def _advance(self, state, action):
        here = state.obs
        there = 0.6 * here[::-1] + jnp.stack([jnp.sin(3 * here[0] + action[0]), jnp.cos(2 * here[1])])
        return there, action[0], (there[0] > 0.5).astype(jnp.float32)


TASK = "test_deploy:Wander"
SMALL = {
    "task": TASK,
    "seeds": 2,
    "steps": 640,
    "environment": {"count": 4, "steps": 8},
    "ppo": {"minibatch": 12},
    "policy": {"hidden": (8,)},
    "constraint": {"form": "jensen", "policy": "both"},
}
LEARNED = {"method": {"source": "traces"}, "labels": {"interval": 2}, "estimator": {"decoder": (8,)}}
SETTINGS = {
    "no_memory": {},
    "memory": LEARNED,
    "raw": {
        **LEARNED,
        "policy": {"hidden": (8, 8), "mean": "free", "activation": "tanh"},
        "estimator": {"decoder": (8,), "normalize_inputs": False, "decoder_reads": "summary"},
        "normalize": {"observations": False},
    },
    "true_budget": {"method": {"source": "oracle", "solver": "ppo_saute"}, "constraint": {"cost_limit": 2.0}},
    "learned_budget": {**LEARNED, "method": {"source": "traces", "solver": "ppo_saute"}},
}


@dataclasses.dataclass
class Run:
    """A run folder, its first policy, and an episode of six environments with the deployed policy of each seed."""

    name: str
    folder: pathlib.Path
    saved: saved.Saved
    policy: Policy
    observations: np.ndarray  # [S, T, B, O]
    actions: np.ndarray  # [S, T, B, A]
    costs: np.ndarray  # [S, T, B] of the step before


def moved(statistics, key):
    """Statistics as after some observations."""
    size = statistics.mean.shape
    return statistics.replace(
        count=jnp.full_like(statistics.count, 50.0),
        mean=jax.random.normal(key, size),
        squares=50.0 * jax.random.uniform(key, size, minval=0.5, maxval=2.0),
    )


@pytest.fixture(scope="module", params=SETTINGS)
def run(request, tmp_path_factory):
    """Policies that have seen something."""
    changes = {**SMALL, **SETTINGS[request.param]}
    config = make_config(**{**changes, "constraint": {**SMALL["constraint"], **changes["constraint"]}})
    folder = tmp_path_factory.mktemp(request.param) / "run"
    make_folder(config, folder)
    built = build.build(config)
    learner, state = built.program.learner, built.program.init()
    seen = moved(state.normalizers.observation, jax.random.key(1))
    summary = state.normalizers.summary and moved(state.normalizers.summary, jax.random.key(2))
    seen = state.normalizers.replace(observation=seen, summary=summary)
    kept = state.kept.replace(
        policy=state.kept.policy.replace(normalizers=seen),
        iteration=jnp.asarray([3, 4], jnp.int32),
        gap=jnp.asarray([-1.0, 1.0]),
    )
    state = state.replace(kept=kept)
    saves = checkpoint.Checkpoints(folder / "checkpoints", identity=None)
    saves.save(5, state)
    saves.close()

    def episode(settings, state):
        start = learner.start(settings, jax.random.split(jax.random.key(3), 6))
        quiet = jnp.zeros((8, 6, learner.task.action_size))
        player = learner.player(settings, learner.deployed(state))
        _, transitions, truth = rollout.run(learner.task, player, start, quiet, jax.random.split(jax.random.key(4), 6))
        return transitions, truth.cost

    transitions, cost = jax.device_get(jax.jit(jax.vmap(episode))(built.program.settings, state))
    found = saved.read(folder, "deployed", None, pytest.fail)
    before = np.concatenate([np.zeros_like(cost[:, :1]), cost[:, :-1]], axis=1)
    return Run(request.param, folder, found, Policy(found), transitions.observation, transitions.action, before)


def test_it_plays_what_evaluation_plays(run):
    policy, expected = run.policy, run.actions[0]
    assert np.ptp(expected) > 1e-3, "the episodes must differ from step to step"
    policy.reset()
    found = [policy(o, c) for o, c in zip(run.observations[0], run.costs[0], strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # One environment alone, after another episode.
    policy.reset()
    found = [policy(o[2], c[2]) for o, c in zip(run.observations[0], run.costs[0], strict=True)]
    np.testing.assert_allclose(found, expected[:, 2], atol=1e-5)


def test_a_part_of_the_environments_begins_again(run):
    policy, observations, expected = run.policy, run.observations[0], run.actions[0]
    policy.reset()
    for o, c in zip(observations[:3], run.costs[0, :3], strict=True):
        policy(o, c)
    policy.reset([True, False, False, True, False, False])
    # The first and the fourth play their episode from its beginning, the others go on.
    rows = np.where(np.isin(np.arange(6), [0, 3])[:, None], observations[0], observations[3])
    found = policy(rows, run.costs[0, 3])
    np.testing.assert_allclose(found[[0, 3]], expected[0, [0, 3]], atol=1e-5)
    np.testing.assert_allclose(found[[1, 2, 4, 5]], expected[3, [1, 2, 4, 5]], atol=1e-5)


@pytest.mark.parametrize("run", ["memory", "true_budget"], indirect=True)
def test_the_pure_step_inside_a_scan(run):
    @jax.jit
    def play(observations, costs):
        def step(remembered, now):
            action, remembered = run.policy.step(remembered, *now)
            return remembered, action

        return lax.scan(step, run.policy.begin(6), (observations, costs))[1]

    np.testing.assert_allclose(play(run.observations[0], run.costs[0]), run.actions[0], atol=1e-5)


@pytest.mark.parametrize("run", ["memory", "true_budget"], indirect=True)
def test_where_it_comes_from(run):
    with pytest.warns(UserWarning, match="seed=1 of .* never satisfied the constraint"):
        second = traces_jax.load(run.folder, seed=1)
    assert (second.seed, second.iteration, second.satisfied, second.task) == (1, 4, False, TASK)
    found = [second(o, c) for o, c in zip(run.observations[1], run.costs[1], strict=True)]
    np.testing.assert_allclose(found, run.actions[1], atol=1e-5)
    first, latest = run.policy, traces_jax.load(str(run.folder), step=5)
    assert (first.seed, first.iteration, first.satisfied) == (0, 3, True)
    assert (latest.iteration, latest.satisfied) == (5, None)
    assert first.reads_cost == (run.name == "true_budget")
    assert (first.estimator is None) == (run.name == "true_budget")
    first.reset()
    assert np.abs(first(np.ones(2)) - latest(np.ones(2))).max() > 1e-4, "the last policy is another one"
    with pytest.raises(traces_jax.UserError, match="--seed=7 is not in run"):
        traces_jax.load(run.folder, seed=7)


@pytest.mark.parametrize("run", ["memory", "true_budget"], indirect=True)
def test_bad_use_is_one_sentence(run):
    policy = run.policy
    policy.reset()
    with pytest.raises(traces_jax.UserError, match=r"shape \[3, 9\]; \[2\], or \[B, 2\]"):
        policy(np.zeros((3, 9)))
    policy(np.zeros((6, 2)))
    with pytest.raises(traces_jax.UserError, match=r"2 observations follow 6 .* reset\(\)"):
        policy(np.zeros((2, 2)), np.zeros(2))
    if policy.reads_cost:
        with pytest.raises(traces_jax.UserError, match="budget of the true cost"):
            policy(np.zeros((6, 2)))
    else:
        policy(np.zeros((6, 2)))
    with pytest.raises(traces_jax.UserError, match="is not a run folder"):
        traces_jax.load("nowhere")


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_credits_of_an_episode(run):
    estimator, deployed = run.policy.estimator, run.saved.deployed
    assert estimator is not None
    observations, actions = run.observations[0], run.actions[0]
    said = deployed.learner.source.credits(
        deployed.config, deployed.state.source, deployed.state.normalizers.observation, observations, actions
    )
    np.testing.assert_allclose(estimator.credits(observations, actions), said.credit, atol=1e-5)
    # A part of an episode, of one environment.
    part = observations[:5, 2], actions[:5, 2]
    np.testing.assert_allclose(estimator.credits(*part), said.credit[:5, 2], atol=1e-5)
    np.testing.assert_allclose(estimator.probability(*part), np.exp(said.log_probability[:5, 2]), atol=1e-5)
    with pytest.raises(traces_jax.UserError, match=r"\[8, 6, 2\] and actions \[7, 6, 1\] do not fit; .* right"):
        estimator.credits(observations, actions[:7])


def test_files_play_the_same(run, tmp_path):
    """Within 1e-5 over 1000 observations; the ONNX file also with onnxruntime, which knows nothing of JAX."""
    name, folder, found = run.name, run.folder, run.saved
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    said: list[str] = []
    if name == "learned_budget":
        with pytest.raises(traces_jax.UserError, match="ONNX cannot hold that policy, --formats=jax can"):
            export.export(found, folder, tmp_path / "out", ("onnx", "jax"), said.append)
        assert not (tmp_path / "out").exists()
        export.export(found, folder, tmp_path / "out", ("jax",), said.append)
        return
    export.export(found, folder, tmp_path / "out", ("onnx", "jax"), said.append)
    flat = export.Flat(found.deployed)
    session = runtime.InferenceSession(tmp_path / "out/policy.onnx", providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == list(flat.inputs)
    assert [node.name for node in session.get_outputs()] == list(flat.outputs)
    random = np.random.default_rng(5)
    policy = run.policy
    policy.reset()
    memory = np.zeros((100, flat.memory_size), np.float32)
    for _ in range(10):
        given = {
            "observation": random.normal(0.0, 2.0, (100, 2)).astype(np.float32),
            "memory": memory,
            "cost": random.integers(0, 2, 100).astype(np.float32),
        }
        action, *after = session.run(None, {name: given[name] for name in flat.inputs})
        np.testing.assert_allclose(action, policy(given["observation"], given["cost"]), atol=1e-5)
        memory = after[0] if after else memory
    # And the episode that evaluation played.
    memory = np.zeros((6, flat.memory_size), np.float32)
    exported = jax.export.deserialize(bytearray((tmp_path / "out/policy.jax").read_bytes()))
    for observation, before, expected in zip(run.observations[0], run.costs[0], run.actions[0], strict=True):
        given = {"observation": observation, "memory": memory, "cost": before}
        action, *after = exported.call(*(given[name] for name in flat.inputs))
        np.testing.assert_allclose(action, expected, atol=1e-5)
        memory = after[0] if after else memory
    card = json.loads((tmp_path / "out/card.json").read_text())
    assert (card["task"], card["seed"], card["iteration"]) == (TASK, 0, 3)
    assert card["version"] == traces_jax.__version__ and card["inputs"] == flat.inputs
    assert max(card["largest_difference"].values()) <= 1e-5
    assert TASK in (tmp_path / "out/card.md").read_text()


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_a_file_that_differs_is_not_kept(tmp_path, run, monkeypatch):
    pytest.importorskip("onnx")
    from traces_jax.host.deploy import graph

    monkeypatch.setattr(graph.Graph, "gru", lambda self, layer, state, below: state)
    with pytest.raises(traces_jax.UserError, match=r"policy.onnx differs from the policy by .* nothing is written"):
        export.export(run.saved, run.folder, tmp_path / "out", ("onnx",), print)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_labels_on_the_card_are_those_until_the_policy(run):
    from traces_jax.host.deploy import card

    folder = run.folder
    rows = [
        {
            "lane": f"seed={seed}",
            "iteration": i,
            "steps": 32,
            "labels/trajectories": 10.0 * i + seed,
            "labels/queries": i,
        }
        for i in range(6)
        for seed in (0, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = card.facts(run.saved, folder, "1")["labels"]
    # The policy had 3 finished iterations, the checkpoint 5.
    assert found["until_policy"] == {"trajectories": 20, "single_labels": 2}
    assert found["of_run"] == {"trajectories": 40, "single_labels": 4}
    (folder / "metrics.jsonl").unlink()
    unknown = card.facts(run.saved, folder, "1")["labels"]
    assert unknown == {"until_policy": None, "of_run": None}


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_the_command(run, tmp_path, capsys):
    """Writes a folder once, replaces it when asked, and leaves other folders alone."""
    from traces_jax import export as command

    def call(**given):
        flags.FLAGS.mark_as_parsed()
        with flagsaver.flagsaver(**given):
            return command.main()

    given = {"run": str(run.folder), "out": str(tmp_path / "out"), "formats": ["jax"], "seed": 1}
    assert call(**given) == 0
    assert "note: seed=1 never satisfied its constraint" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["card.json", "card.md", "policy.jax"]
    with pytest.raises(traces_jax.UserError, match="exists"):
        call(**given)
    assert call(**{**given, "overwrite": True, "seed": 0}) == 0
    assert json.loads((tmp_path / "out/card.json").read_text())["seed"] == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine").write_text("mine")
    with pytest.raises(traces_jax.UserError, match="exists and is not an exported policy; choose another folder"):
        call(**{**given, "out": str(tmp_path / "other"), "overwrite": True})
    with pytest.raises(traces_jax.UserError, match="--formats=pt is not right: choose from onnx, jax"):
        call(**{**given, "formats": ["pt"]})
