"""What is saved of noisy episodes is what happened in them, and what the estimator and the labeler say of it."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
from absl import flags
from absl.testing import flagsaver
from helpers import make_config, make_folder

from traces_jax import evaluate
from traces_jax.core.keys import Stream, stream
from traces_jax.core.learner import LearnerState
from traces_jax.estimator import credit, network
from traces_jax.feedback import labels
from traces_jax.host import runtime
from traces_jax.host.run import build, checkpoint, diagnostics, evaluation
from traces_jax.tasks import base, probe

SETTINGS = {
    "task": "test_diagnostics:Stumble",
    "seeds": 2,
    "steps": 400,
    "environment": {"count": 2, "steps": 20},
    "policy": {"hidden": (4,)},
    "critic": {"hidden": (4,)},
    "estimator": {"clamp": -3.0, "decoder": (8,), "initial_probability": 0.3},
    "constraint": {"cost_limit": 1.5},
    "refit": {"store": 4},
    "ppo": {"minibatch": 20},
}


class Stumble(probe.Budget):
    """As Budget, but ends for good at an action above 1.2, and observes what was done so far."""

    ends_early = True

    def step(self, state: base.State, action: jax.Array) -> base.State:
        _, reward, cost = self._advance(state, action)
        return base.finish(
            state, state.pipeline_state, state.obs + 0.1 * action, reward=reward, cost=cost,
            terminated=action[0] > 1.2, horizon=self.horizon, metrics={},
        )  # fmt: skip


def built_with(**changes: object) -> tuple[build.Built, LearnerState]:
    """A program and its first state, with statistics that have moved."""
    built = build.build(make_config(**{**SETTINGS, **changes}))
    state = built.program.init()
    moved = state.normalizers.observation.replace(mean=state.normalizers.observation.mean + 0.25)
    return built, state.replace(normalizers=state.normalizers.replace(observation=moved))


def played(built: build.Built, state: LearnerState, count: int) -> list[dict[str, np.ndarray]]:
    """For each lane its first episodes, in blocks of two, step by step without a rollout and on beyond their ends.

    Returns inputs [T, count, F]; cost, reward, terminated [T, count]; length [count].
    """
    learner, config = built.program.learner, built.config
    task, found = learner.task, []

    @jax.jit
    def start(key):
        keys = [
            [jax.random.fold_in(stream(key, 3 * (number // 2) + part, Stream.DIAGNOSE), number % 2) for part in (0, 1)]
            for number in range(count)
        ]
        noise = [jax.random.normal(own, (task.horizon, task.action_size)) for _, own in keys]
        return jax.vmap(task.reset)(jnp.stack([own for own, _ in keys])), jnp.stack(noise, axis=1)

    @jax.jit
    def step(state, environment, memory, noise):
        player = learner.player(config, state)
        action = player.act(environment.obs, player.summarize(memory.source), memory.solver, noise)
        after = jax.vmap(task.step)(environment, action)
        return after, player.remember(memory, environment.obs, action, after.info["cost"]), action

    for lane in range(len(built.lanes)):
        own = lane_of(state, lane)
        environment, noises = start(own.key)
        memory, rows = learner.player(config, own).begin(count), []
        for noise in noises:
            observation = environment.obs
            environment, memory, action = step(own, environment, memory, noise)
            row = {"reward": environment.reward, "done": environment.done, **environment.info}
            rows.append({"inputs": np.concatenate([observation, action], axis=-1), **row})
        result = {name: np.asarray([row[name] for row in rows]) for name in rows[0]}
        found.append(result | {"length": np.argmax(result["done"], axis=0) + 1})
    return found


def lane_of(state: LearnerState, lane: int) -> LearnerState:
    return jax.tree.map(lambda leaf: leaf[lane], jax.device_get(state))


def test_saved_episodes_are_those_that_were_played(tmp_path: pathlib.Path, monkeypatch, capsys):
    """Through the command line, on a task that ends early; more episodes than fit into one block."""
    monkeypatch.setattr(runtime, "setup", lambda: None)  # JAX is already set up in this process
    built, state = built_with(method={"source": "traces"})
    make_folder(built.config, tmp_path / "run")
    checkpoints = checkpoint.Checkpoints(tmp_path / "run/checkpoints", identity=None, keep=2)
    checkpoints.save(0, state)
    checkpoints.close()
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(run=str(tmp_path / "run"), episodes=5, diagnostics=True, seed=None, video=None):
        assert evaluate.main() == 0
    said = capsys.readouterr().out
    assert "mean (std) over seeds, 5 episodes each" in " ".join(said.split()) and "seed=1" in said
    assert f"saved: {tmp_path / 'run/diagnostics.npz'}" in said
    with np.load(tmp_path / "run/diagnostics.npz") as file:
        found = dict(file)
    names = {"lanes", "return", "length", "accepted", "probability", "cost", "credit", "limit", "iteration"}
    assert found.keys() == names
    assert found["iteration"] == 0
    assert found["lanes"].tolist() == ["seed=0", "seed=1"]
    assert found["limit"] == 1.5 and found["limit"].shape == ()
    assert found["return"].shape == (2, 5) and found["cost"].shape == found["credit"].shape == (2, 5, 10)

    @jax.jit
    def judge(state, inputs, cost, length, terminated):
        prepared = built.program.learner.source.prepare(built.config, state.normalizers.observation, inputs)
        _, mu, sigma = network.apply(state.source.fitted.params, prepared)
        verdict = labels.oracle(cost.T, length, terminated, limit=1.5, ends=np.asarray([10]), early_end_violates=True)
        return credit.clamped_mean(mu, sigma, clamp=-3.0), verdict[:, 0]

    for lane, expected in enumerate(played(built, state, 5)):
        terminated = expected["terminated"][expected["length"] - 1, np.arange(5)]
        expected["credit"], verdict = judge(
            lane_of(state, lane), expected["inputs"], expected["cost"], expected["length"], terminated
        )
        np.testing.assert_array_equal(found["accepted"][lane], verdict)
        np.testing.assert_array_equal(found["length"][lane], expected["length"])
        for number, length in enumerate(expected["length"]):
            at = (lane, number)
            np.testing.assert_allclose(found["return"][at], expected["reward"][:length, number].sum(), rtol=1e-5)
            for name in ("cost", "credit"):
                np.testing.assert_allclose(found[name][at][:length], expected[name][:length, number], rtol=1e-4)
                assert np.isnan(found[name][at][length:]).all()
    assert len(np.unique(found["length"])) > 1 and found["length"].max() == 10, "some must end early, some not"
    assert 0 < found["accepted"].mean() < 1
    # The episode of a video: this task has one start, so that the mean policy has one episode.
    drawn = evaluation.episode(built, state)
    with np.load(tmp_path / "run/evaluation.npz") as file:
        np.testing.assert_allclose(drawn.cost.sum(), file["cost"][0], rtol=1e-5)
    assert drawn.credit is not None and drawn.credit.shape == drawn.cost.shape == (10,) and drawn.limit == 1.5
    assert len(drawn.qpos) == 10 and np.all(drawn.credit > 0)
    total = np.nansum(found["credit"], axis=-1)
    assert len(np.unique(total)) == 10, "no two episodes are the same"
    np.testing.assert_allclose(found["probability"], np.exp(-total), rtol=1e-4)
    np.testing.assert_allclose(drawn.probability, np.exp(-np.cumsum(drawn.credit)), rtol=1e-4)


@pytest.mark.parametrize("source", ["ct", "rlsf"])
def test_the_credit_of_other_sources_is_their_cost(source):
    built, state = built_with(method={"source": source}, seeds=1, rlsf={"alpha": 1.5})
    found = diagnostics.collect(built, state, 3, rich.console.Console())
    params = jax.tree.map(lambda leaf: leaf[0], jax.device_get(state.source.fitted.params))
    if source == "ct":
        logit = np.exp(params.log_threshold) - np.nansum(found["credit"], axis=-1)
        np.testing.assert_allclose(found["probability"], 1 / (1 + np.exp(-logit)), rtol=1e-4)
    else:
        assert set(np.unique(found["credit"][np.isfinite(found["credit"])])) <= {0.0, 1.0}
        assert ((found["probability"] >= 0) & (found["probability"] <= 1)).all()
    console = rich.console.Console(width=80, record=True)
    console.print(diagnostics.table(found, ["seed=0"], "Stumble"))
    assert "calibration" in console.export_text()


def test_the_true_cost_has_no_credit():
    """One lane on two devices, each with a share of the environments."""
    built, state = built_with(method={"source": "oracle"}, seeds=1, labels={"early_end": "by_cost"})
    assert built.program.grid.environments.shares == 2
    found = diagnostics.collect(built, state, 3, rich.console.Console())
    assert found.keys() == {"return", "length", "accepted", "cost"}
    (expected,) = played(built, state, 3)
    inside = np.arange(10)[:, None] < expected["length"]
    np.testing.assert_allclose(found["cost"][0], np.where(inside, expected["cost"], np.nan).T, rtol=1e-5)
    total = np.nansum(found["cost"], axis=-1)
    np.testing.assert_allclose(total, found["return"], rtol=1e-5)
    np.testing.assert_array_equal(found["accepted"], total <= 1.5)
    drawn = evaluation.episode(built, state)
    assert drawn.credit is None and drawn.limit == 1.5 and len(drawn.qpos) == len(drawn.cost) == 10
    console = rich.console.Console(width=80, record=True)
    console.print(diagnostics.table(found, ["seed=0"], "Stumble"))
    assert "accepted" in console.export_text() and "calibration" not in console.export_text()


def test_summary_by_hand():
    """Four episodes, two of them in the same range of probabilities."""
    probability = np.asarray([0.95, 0.92, 0.4, 0.04])
    accepted = np.asarray([1.0, 0.0, 1.0, 0.0])
    credits = np.stack([-np.log(probability) / 4, -np.log(probability) * 3 / 4, np.full(4, np.nan)], axis=1)
    cost = np.tile([0.0, 2.0, np.nan], (4, 1))
    found = diagnostics.summarize(accepted, probability, cost, credits)
    assert found["accepted"] == 0.5
    assert found["probability"] == pytest.approx(probability.mean())
    assert found["right"] == 0.5
    # Of the two around 0.935 one was accepted; 0.4 stands against 1, 0.04 against 0.
    assert found["calibration_error"] == pytest.approx((2 * (0.935 - 0.5) + 0.6 + 0.04) / 4)
    assert found["credit_where_none"] == pytest.approx((1 / 4) / (1 / 2))
    for costs, said in ((cost + 1, credits), (cost, 0 * credits)):
        assert np.isnan(diagnostics.summarize(accepted, probability, costs, said)["credit_where_none"])


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probabilities_at_the_ends_have_a_range(probability: float):
    one = np.asarray([probability])
    found = diagnostics.summarize(one, one, np.ones((1, 1)), np.ones((1, 1)))
    assert found["calibration_error"] == 0.0 and found["right"] == 1.0


def test_table_has_every_lane_and_each_setting_pooled():
    lanes = ["seed=0 ppo.clip=0.1", "seed=1 ppo.clip=0.1", "seed=0 ppo.clip=0.2", "seed=1 ppo.clip=0.2"]
    generator = np.random.default_rng(0)
    result = {
        "return": np.zeros((4, 3)),
        "accepted": np.asarray([[1.0] * 3, [0.0] * 3, [1.0] * 3, [1.0] * 3]),
        "cost": generator.uniform(size=(4, 3, 5)),
        "probability": generator.uniform(size=(4, 3)),
        "credit": generator.uniform(size=(4, 3, 5)),
    }
    console = rich.console.Console(width=120, record=True)
    console.print(diagnostics.table(result, lanes, "Task"))
    text = console.export_text()
    assert all(lane in text for lane in lanes)
    pooled = next(line for line in text.splitlines() if line.startswith("│ ppo.clip=0.1 "))
    assert "50 %" in pooled
