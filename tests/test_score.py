"""Scoring from the command line: what is written, and what is refused in one sentence."""

import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from helpers import first_carry, make_config, make_folder
from test_import_torch import NUMBERS, RELEASED, SHARED, estimator_arrays, save, save_arrays, whole

from traces_jax import score, tasks
from traces_jax.core import normalize
from traces_jax.estimator import credit, network
from traces_jax.host import errors, runtime
from traces_jax.host.data import import_torch
from traces_jax.host.run import build, checkpoint, restore

GOOD = np.random.default_rng(0).normal(size=(2, 5, 3))


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working folder with a good estimator of three features and good inputs."""
    monkeypatch.chdir(tmp_path)
    # JAX is already set up in this process.
    monkeypatch.setattr(runtime, "setup", lambda: None)
    save_arrays(tmp_path / "a.pt", estimator_arrays())
    np.savez(tmp_path / "in.npz", inputs=GOOD)
    return tmp_path


def run_main(**changes: str | int | None) -> int:
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(**{"estimator": "a.pt", "inputs": "in.npz", "out": "out.npz", **changes}):
        return score.main()


def files(folder: pathlib.Path) -> list[str]:
    return sorted(left.name for left in folder.iterdir())


def test_every_array_is_written(folder: pathlib.Path, capsys: pytest.CaptureFixture):
    assert run_main() == 0
    assert files(folder) == ["a.pt", "in.npz", "out.npz"]
    with np.load("out.npz") as file:
        found = dict(file)
    shapes = {name: values.shape for name, values in found.items()}
    numbers = dict.fromkeys(("mu", "sigma", "mean", "variance", "log_probability"), (2, 5))
    assert shapes == {"hidden": (2, 5, 2), **numbers}
    # Step by step, one trajectory at a time.
    estimator = import_torch.estimator(pathlib.Path("a.pt"))
    advance, decode, clamped_mean, clamped_variance = (
        jax.jit(function)
        for function in (network.advance, network.decode, credit.clamped_mean, credit.clamped_variance)
    )
    for trajectory in range(2):
        carry, total = first_carry(estimator, ()), 0.0
        for step in range(5):
            now = GOOD[trajectory, step].astype(np.float32)
            before, carry = carry, advance(estimator, carry, now)
            mu, sigma = decode(estimator, before[-1], carry[-1], now)
            mean = clamped_mean(mu, sigma, clamp=-7.0)
            total -= float(mean)
            at = (trajectory, step)
            np.testing.assert_allclose(found["hidden"][at], carry[-1], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(found["mu"][at], mu, rtol=1e-5)
            np.testing.assert_allclose(found["sigma"][at], sigma, rtol=1e-5)
            np.testing.assert_allclose(found["mean"][at], mean, rtol=1e-4)
            np.testing.assert_allclose(found["log_probability"][at], total, rtol=1e-4)
    variance = clamped_variance(found["mu"], found["sigma"], clamp=-7.0)
    np.testing.assert_allclose(found["variance"], variance, rtol=1e-4)
    assert np.all(found["mean"] > 0.01), "an estimator that says nothing would make all of this easy"
    probability = np.exp(found["log_probability"][:, -1]).mean()
    assert (
        f"2 trajectories of 5 steps, mean probability of being acceptable {probability:.6g}" in capsys.readouterr().out
    )


@pytest.mark.skipif(not RELEASED, reason="the authors' estimators are not beside the repository")
@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_the_authors_estimators(path: pathlib.Path, folder: pathlib.Path):
    weights = SHARED / "estimators" / f"{path.stem}_DistributionGRU_4_2_128.pt"
    # Their file of outputs holds the inputs too; the other arrays are not used.
    assert run_main(estimator=str(weights), inputs=str(path)) == 0
    with np.load("out.npz") as file, np.load(path) as expected:
        for name in ("mu", "sigma"):
            np.testing.assert_allclose(file[name], expected[name], rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(file["hidden"], expected["hidden"], rtol=0, atol=1e-4)
        # Where the clamp is out of reach, their moments are ours; elsewhere ours are smaller.
        far = expected["mu"] + 6 * expected["sigma"] < np.log(7)
        for name in ("mean", "variance"):
            np.testing.assert_allclose(file[name][far], expected[name][far], rtol=1e-4, err_msg=name)
            assert np.all(file[name] <= expected[name] * (1 + 1e-4))
        assert far.mean() > 0.5
        np.testing.assert_allclose(file["log_probability"], -np.cumsum(file["mean"], axis=1), rtol=1e-5)


def a_run(folder: pathlib.Path, source: str) -> build.Built:
    """A run folder of two seeds as it is before the first iteration."""
    config = make_config(
        task="ProbeBudget",
        seeds=2,
        method={"source": source},
        estimator={"clamp": -3.0, "action_clip": 0.5},
        environment={"count": 2, "steps": 20},
        refit={"store": 4},
        steps=400,
        ppo={"minibatch": 20},
    )
    built = build.build(config)
    make_folder(config, folder)
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", identity=None, keep=2)
    state = built.program.init()
    moved = state.normalizers.observation.replace(mean=state.normalizers.observation.mean + 0.25)
    checkpoints.save(0, state.replace(normalizers=state.normalizers.replace(observation=moved)))
    checkpoints.close()
    return built


def test_the_estimator_of_a_run(folder: pathlib.Path):
    """Reads inputs as in training: scaled observations, bounded actions, the run's own clamp, the chosen seed."""
    a_run(folder / "run", "traces")
    features = tasks.make("ProbeBudget").observation_size + tasks.make("ProbeBudget").action_size
    inputs = np.random.default_rng(1).normal(size=(2, 5, features)).astype(np.float32)
    np.savez("in.npz", inputs=inputs)
    found = {}
    for seed in (None, 0, 1):
        assert run_main(estimator="run", seed=seed) == 0
        with np.load("out.npz") as file:
            found[seed] = dict(file)
    np.testing.assert_array_equal(found[None]["mu"], found[0]["mu"])
    assert np.abs(found[1]["mu"] - found[0]["mu"]).max() > 1e-3
    state = jax.tree.map(lambda leaf: leaf[1], restore.load(folder / "run", "latest", None, print).state)
    split = tasks.make("ProbeBudget").observation_size
    prepared = np.concatenate(
        [
            normalize.apply(state.normalizers.observation, inputs[..., :split]),
            np.clip(inputs[..., split:], -0.5, 0.5),
        ],
        axis=-1,
    )
    hidden, mu, sigma = network.apply(state.source.fitted.params, np.swapaxes(prepared, 0, 1))
    np.testing.assert_allclose(found[1]["hidden"], np.swapaxes(hidden, 0, 1), rtol=1e-4, atol=1e-6)
    mean = credit.clamped_mean(mu, sigma, clamp=-3.0)
    np.testing.assert_allclose(found[1]["mean"], np.swapaxes(mean, 0, 1), rtol=1e-4)


def test_a_run_with_the_true_cost_has_no_estimator(folder: pathlib.Path):
    a_run(folder / "run", "oracle")
    with pytest.raises(errors.UserError, match=r"has no estimator: it was trained with method\.source=oracle\."):
        run_main(estimator="run")


def test_a_file_has_no_seeds(folder: pathlib.Path):
    with pytest.raises(errors.UserError, match="--seed=1 is for run folders"):
        run_main(seed=1)


BAD_INPUTS: dict[str, tuple[dict[str, object], str]] = {
    "no inputs": ({"input": GOOD}, r"in.npz has no array 'inputs'; it must hold inputs \[B, T, 3\]\."),
    "too wide": ({"inputs": np.zeros((2, 5, 4))}, r"inputs has shape \[2, 5, 4\]; it must be \[B, T, 3\] with B and T"),
    "one trajectory": ({"inputs": GOOD[0]}, r"inputs has shape \[5, 3\]; it must be \[B, T, 3\]"),
    "no steps": ({"inputs": np.zeros((2, 0, 3))}, r"inputs has shape \[2, 0, 3\].*at least 1"),
    "no trajectories": ({"inputs": np.zeros((0, 5, 3))}, r"inputs has shape \[0, 5, 3\].*at least 1"),
    "nan": (
        {"inputs": np.where(np.arange(30).reshape(2, 5, 3) == 22, np.nan, 0)},
        r"inputs\[1, 2, 1\] is nan;.*finite",
    ),
    "text": ({"inputs": np.full((2, 5, 3), "left")}, "inputs holds str.*; it must hold real numbers"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs_are_one_sentence(case: str, folder: pathlib.Path):
    arrays, says = BAD_INPUTS[case]
    np.savez("in.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(errors.UserError, match=says) as caught:
        run_main()
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert files(folder) == ["a.pt", "in.npz"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"estimator": None}, "--estimator is missing; give it as in --estimator runs/ant"),
        ({"inputs": None}, "--inputs is missing"),
        ({"out": None}, "--out is missing"),
        ({"estimator": "b.pt"}, "--estimator=b.pt cannot be read: No such file or directory"),
        ({"estimator": "."}, ". is not a run folder: it has no config.json"),
        ({"estimator": "in.npz"}, "--estimator=in.npz is not a file of PyTorch"),
        ({"inputs": "b.npz"}, "--inputs=b.npz does not exist; give an .npz file with an array 'inputs'"),
        ({"inputs": "a.pt"}, "a.pt has no array 'inputs'|--inputs=a.pt is not a readable .npz file"),
        ({"out": "nowhere/out.npz"}, "folder 'nowhere' does not exist"),
        ({"out": "."}, "it is a folder"),
    ],
)
def test_bad_flags_are_one_sentence(changes: dict[str, str | None], says: str, folder: pathlib.Path):
    with pytest.raises(errors.UserError, match=says) as caught:
        run_main(**changes)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert files(folder) == ["a.pt", "in.npz"]


def test_other_networks_are_refused(folder: pathlib.Path):
    save(folder / "a.pt", {"log_budget": whole("0", NUMBERS[0])})
    with pytest.raises(errors.UserError, match=r"--estimator=a.pt holds no cost-threshold model: 'mlp_log_cost.0.wei"):
        run_main()
    save(folder / "a.pt", {"budget": whole("0", NUMBERS[0])})
    with pytest.raises(errors.UserError, match=r"--estimator=a.pt holds no TraCeS estimator: 'gru.weight_ih_l0' is"):
        run_main()


def test_unused_arrays_are_named(folder: pathlib.Path, capsys: pytest.CaptureFixture):
    np.savez("in.npz", inputs=GOOD, noise=GOOD)
    run_main()
    assert "in.npz: array 'noise' is not used." in capsys.readouterr().err


def test_command_line(tmp_path: pathlib.Path):
    save_arrays(tmp_path / "a.pt", estimator_arrays())
    np.savez(tmp_path / "in.npz", inputs=GOOD)
    np.savez(tmp_path / "wide.npz", inputs=np.zeros((2, 5, 7)))

    def command(inputs: str) -> subprocess.CompletedProcess:
        arguments = ["--estimator", "a.pt", "--inputs", inputs, "--out", "out.npz"]
        program = [sys.executable, "-m", "traces_jax.score", *arguments]
        return subprocess.run(program, check=False, cwd=tmp_path, capture_output=True, text=True)

    refused = command("wide.npz")
    assert refused.returncode == 2
    says = "wide.npz: inputs has shape [2, 5, 7]; it must be [B, T, 3] with B and T of at least 1."
    assert refused.stderr == f"traces_jax.score: {says}\n"
    assert files(tmp_path) == ["a.pt", "in.npz", "wide.npz"]
    done = command("in.npz")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == ["a.pt", "in.npz", "out.npz", "wide.npz"]
