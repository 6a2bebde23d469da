"""Files of offline data: their layout, which episodes get into them, and every sentence of the command line."""

import json
import pathlib
import subprocess
import sys

import h5py
import jax
import numpy as np
import pytest
import rich.console
from helpers import ROOT, make_config

from traces_jax import config as config_lib
from traces_jax.host import errors
from traces_jax.host.data import collect
from traces_jax.host.data.collect import Block
from traces_jax.host.run import build
from traces_jax.tasks import base, probe

SETTINGS = {
    "task": "test_collect:Stumble",
    "steps": 400,
    "seeds": 3,
    "sweep": "ppo.clip=0.1,0.2",
    "method": {"source": "traces"},
    "environment": {"count": 4, "steps": 10},
    "policy": {"hidden": (4,)},
    "critic": {"hidden": (4,)},
    "constraint": {"cost_limit": 1.5},
    "ppo": {"minibatch": 20, "passes": 2},
    "collect": {"steps": 120, "moments": 3, "limits": (0.5,), "noise": (0.0, 1.0, 3.0)},
}
FLOATS = {"observations": 2, "next_observations": 2, "actions": 1, "qpos": 2}


class Stumble(probe.Budget):
    """As Budget, but ends for good at an action above 1.2, starts anywhere, and observes the place and the clock."""

    observation_size = 2
    ends_early = True

    def _start(self, rng: jax.Array) -> jax.Array:
        return jax.random.uniform(rng, (2,))

    def step(self, state: base.State, action: jax.Array) -> base.State:
        _, reward, cost = self._advance(state, action)
        place = state.obs + jax.numpy.asarray([0.1 * action[0], 1.0])
        return base.finish(
            state, state.pipeline_state.replace(qpos=2 * place), place, reward=2 * reward, cost=cost,
            terminated=action[0] > 1.2, horizon=self.horizon, metrics={},
        )  # fmt: skip


class Fragile(Stumble):
    """As Stumble, but wherever the other ends its simulator breaks."""

    def step(self, state: base.State, action: jax.Array) -> base.State:
        broken = state.pipeline_state.replace(qpos=state.obs + np.inf)
        after = super().step(state, action)
        lost = base.finish(
            state, broken, after.obs, reward=after.reward, cost=after.info["cost"],
            terminated=action[0] > 1.2, horizon=self.horizon, metrics={},
        )  # fmt: skip
        return jax.tree.map(lambda yes, no: jax.numpy.where(action[0] > 1.2, yes, no), lost, after)


def collected(path: pathlib.Path, count: int, **changes: object) -> tuple[dict[str, np.ndarray], collect.Kept]:
    """The arrays of a new file, and what was remembered of its episodes."""
    kept = collect.collect(make_config(**{**SETTINGS, **changes}), path, count)
    with h5py.File(path) as file:
        return {name: values[()] for name, values in file.items()}, kept


def cut(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The episodes of a file."""
    ends = np.flatnonzero(arrays["terminals"] | arrays["timeouts"]) + 1
    assert ends[-1] == len(arrays["costs"]), "the last episode is whole"
    return [
        {name: values[first:end] for name, values in arrays.items()}
        for first, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of 40 episodes: its path, its arrays, and what was remembered."""
    path = tmp_path_factory.mktemp("collect") / "data.hdf5"
    return path, *collected(path, 40)


def test_layout(written):
    path, arrays, _ = written
    steps = len(arrays["costs"])
    assert arrays.keys() == {*FLOATS, "rewards", "costs", "terminals", "timeouts"}
    for name, values in arrays.items():
        assert values.shape == ((steps, FLOATS[name]) if name in FLOATS else (steps,)), name
        assert values.dtype == (bool if name in ("terminals", "timeouts") else np.float32), name
    with h5py.File(path) as file:
        assert file.attrs["task"] == "test_collect:Stumble"
        assert config_lib.from_dict(json.loads(file.attrs["config"])) == make_config(**SETTINGS)
        assert json.loads(file.attrs["versions"]).keys() >= {"traces_jax", "jax", "mujoco"}
    assert [other.name for other in path.parent.iterdir()] == ["data.hdf5"]


def test_episodes_are_whole_and_what_was_remembered_of_them(written):
    """On a task that ends early at large actions; a step's numbers follow from its observation and action."""
    _, arrays, kept = written
    found = cut(arrays)
    assert len(found) == len(kept.lane) == 40
    for number, episode in enumerate(found):
        np.testing.assert_array_equal(episode["next_observations"][:-1], episode["observations"][1:])
        # The clock in the observation: all begin at the beginning, and the last one is not that of the next episode.
        np.testing.assert_allclose(np.floor(episode["observations"][:, 1]), np.arange(len(episode["costs"])))
        np.testing.assert_allclose(
            episode["next_observations"] - episode["observations"],
            np.stack([0.1 * episode["actions"][:, 0], np.ones(len(episode["costs"]))], axis=1),
            atol=1e-5,
        )
        np.testing.assert_allclose(episode["qpos"], 2 * episode["next_observations"])
        np.testing.assert_allclose(episode["costs"], np.clip(episode["actions"][:, 0], 0, 1), rtol=1e-5)
        np.testing.assert_allclose(episode["rewards"], 2 * episode["costs"], rtol=1e-5)
        np.testing.assert_array_equal(episode["terminals"], episode["actions"][:, 0] > 1.2)
        assert episode["timeouts"][-1] == (not episode["terminals"][-1])
        assert len(episode["costs"]) == 10 or episode["terminals"][-1]
        np.testing.assert_allclose(kept.total_cost[number], episode["costs"].sum(), rtol=1e-5)
        np.testing.assert_allclose(kept.total_return[number], episode["rewards"].sum(), rtol=1e-5)
        # An early end is a violation whatever it cost.
        assert kept.accepted[number] == (kept.total_cost[number] <= 1.5 and not episode["terminals"][-1])
    assert len({len(episode["costs"]) for episode in found}) > 2 and any(e["timeouts"][-1] for e in found)
    assert 0 < kept.accepted.mean() < 1 and set(kept.lane) == {0, 1}
    assert len({episode["observations"].tobytes() for episode in found}) == 40, "no episode is there twice"


def test_the_same_command_gives_the_same_file(written, tmp_path):
    _, arrays, _ = written
    again, _ = collected(tmp_path / "again.hdf5", 40)
    other, _ = collected(tmp_path / "other.hdf5", 40, seed=1)
    for name, values in arrays.items():
        np.testing.assert_array_equal(again[name], values, err_msg=name)
    assert len(other["costs"]) != len(arrays["costs"]) or not np.array_equal(other["actions"], arrays["actions"])


def test_noise_is_a_multiple_of_the_policy_s_own():
    """One lane on two devices, each with a share of the environments; the policy's own deviation is 1 at first."""
    training = collect.training_config(make_config(**{**SETTINGS, "task": "ProbeBudget"}))
    built = build.build(training, collect.behaviours(training)[:1])
    program, state = built.program, built.program.init()
    assert program.grid.environments.shares == 2

    def actions(block: int, noise: float) -> np.ndarray:
        """[T, B, A] of three episodes."""
        one_lane = lambda *given: collect.play(program.learner, *given, 3, limit=1.0)  # noqa: E731
        played = jax.jit(program.map_lanes(one_lane, shared=2))(
            program.settings, state, np.int32(block), np.float32(noise)
        )
        assert played.length.tolist() == [[10, 10, 10]]
        return np.asarray(played.steps["actions"][0])

    quiet, own, twice = (actions(0, noise) for noise in (0.0, 1.0, 2.0))
    # The probe has one start and observes nothing new.
    np.testing.assert_array_equal(quiet, np.broadcast_to(quiet[0, 0], quiet.shape))
    np.testing.assert_allclose(twice - quiet, 2 * (own - quiet), atol=1e-5)
    assert 0.5 < (own - quiet).std() < 1.5 and len(np.unique(own)) == own.size
    assert not np.intersect1d(own, actions(1, 1.0)).size, "another block has other noise"


def test_choice_by_hand():
    """Ranges of summed cost around b = 10: to 2, to 10, to 20, to 40, above."""
    costs = np.asarray([1.0, 2.0, 2.1, 10.0, 10.1, 30.0, 99.0, 50.0, 0.0])
    take = lambda count, kept=(): collect.choose(costs, np.asarray(kept), limit=10.0, count=count).tolist()  # noqa: E731
    # One of each range, the first that came; then again from below.
    assert take(5) == [0, 2, 4, 5, 6]
    assert take(7) == [0, 1, 2, 3, 4, 5, 6]
    # The third and fourth have no second one; the last has, and then only the first is left.
    assert take(8) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert take(9) == take(20) == list(range(9))
    # What is kept already counts: 10 is still accepted, and there are two in every other range.
    assert take(2, kept=[0, 0, 15, 20, 21, 40, 41, 1000]) == [2, 3]
    assert take(3, kept=[0, 0, 15, 20, 21, 40, 41, 1000]) == [0, 2, 3]
    assert take(0) == []


def test_plan_by_hand():
    """Moments before, in the middle of and after 3 iterations, three noises, two lanes."""
    training = collect.training_config(make_config(**SETTINGS))
    # 3 * 10 candidates / (3 moments * 3 noises * 2 lanes) = 2 of each lane.
    blocks, size = collect.plan(training, lanes=2, count=10)
    assert size == 2
    assert [block.iteration for block in blocks] == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    assert blocks[:2] == [Block(0, 0.0, due=1), Block(0, 1.0, due=2)] and blocks[-1] == Block(3, 3.0, due=10)
    # 3 * 30 / 18 = 5 of each lane: more than 4 environments, so two blocks of 3.
    blocks, size = collect.plan(training, lanes=2, count=30)
    assert size == 3 and len(blocks) == 18 and blocks[1] == Block(0, 0.0, due=3) and blocks[2].noise == 1.0


def test_behaviours():
    config = make_config(**{**SETTINGS, "seed": 7, "collect": {**SETTINGS["collect"], "limits": (0.5, 2)}})
    training = collect.training_config(config)
    assert training.method.source == "oracle" and training.steps == 120 and training.run.chunk == 1
    assert not training.ppo.actor_lr_decay and training.seeds == 1 and not training.sweep
    lanes = collect.behaviours(training)
    assert [(lane.name, lane.seed) for lane in lanes] == [("limit 0.75", 7), ("limit 3", 8), ("no limit", 9)]
    assert [lane.config.constraint.cost_limit for lane in lanes[:2]] == [0.75, 3.0]
    assert lanes[2].config.constraint.cost_limit > 1e6


def test_without_a_limit_the_cost_does_not_count():
    """The multiplier is zero from the first iteration on, and all stays finite."""
    training = collect.training_config(make_config(**{**SETTINGS, "lagrange": {"initial": 1.0}}))
    built = build.build(training, collect.behaviours(training))
    _, rows = built.program.chunk(built.program.init(), 0, 1)
    assert np.all(rows["finite"] == 1)
    assert rows["constraint/in_force"][0] > 0 and rows["constraint/in_force"][1] == 0


def test_broken_episodes_are_left_out(tmp_path):
    fragile = lambda name, noise: collected(  # noqa: E731
        tmp_path / name, 12, task="test_collect:Fragile", collect={**SETTINGS["collect"], "noise": noise}
    )
    arrays, kept = fragile("data.hdf5", (0.3, 1.0))
    assert not arrays["terminals"].any() and len(kept.lane) == 12 and len(arrays["costs"]) == 120
    assert all(np.isfinite(values).all() for values in arrays.values())
    with pytest.raises(
        errors.UserError, match=r"--episodes=12 is too many: the simulator broke down in all but \d+ of"
    ):
        fragile("none.hdf5", (50.0,))
    assert [path.name for path in tmp_path.iterdir()] == ["data.hdf5"]


def test_table_and_warnings():
    kept = collect.Kept(
        lane=np.asarray([0, 0, 2, 2]),
        total_return=np.asarray([1.0, 3.0, 10.0, 10.0]),
        total_cost=np.asarray([0.0, 1.0, 50.0, 50.0]),
        accepted=np.asarray([True, True, False, True]),
    )
    console = rich.console.Console(width=100, record=True)
    console.print(collect.table(kept, ["limit 1", "limit 2", "no limit"], "Task"))
    rows = {
        line.split("│")[1].strip(): line.split("│")[2:-1]
        for line in console.export_text().splitlines()
        if line[0] == "│"
    }
    cells = {name: [" ".join(cell.split()) for cell in row] for name, row in rows.items()}
    assert cells == {
        "limit 1": ["2", "100 %", "0.1 0.5 0.9", "1.2 2.0 2.8"],
        "limit 2": ["0", "", "", ""],
        "no limit": ["2", "50 %", "50.0 50.0 50.0", "10.0 10.0 10.0"],
        "all": ["4", "75 %", "0.3 25.5 50.0", "1.6 6.5 10.0"],
    }
    assert collect.rare_label(np.arange(20) < 2) == collect.rare_label(np.arange(20) < 18) == ""
    assert "only 5 % of the episodes are accepted; lower collect.limits" in collect.rare_label(np.arange(20) < 1)
    assert "only 5 % of the episodes are not accepted; more collect.steps" in collect.rare_label(np.arange(20) < 19)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"steps": 130},
            "collect.steps=130 does not divide into iterations of 40 steps "
            "(environment.count * environment.steps = 4 * 10); 120 would be right.",
        ),
        (
            {"moments": 5},
            "collect.moments=5 is not right: collect.steps=120 are 3 iterations, with at most 4 moments between them.",
        ),
    ],
)
def test_a_recipe_that_cannot_be_followed(changes, sentence, tmp_path):
    with pytest.raises(config_lib.ConfigError) as error:
        collected(tmp_path / "data.hdf5", 4, collect={**SETTINGS["collect"], **changes})
    assert str(error.value) == sentence and not any(tmp_path.iterdir())


def test_a_policy_that_diverges_leaves_no_file(tmp_path):
    with pytest.raises(errors.UserError, match="a policy became non-finite in iteration 1; try a smaller"):
        collected(tmp_path / "data.hdf5", 4, ppo={**SETTINGS["ppo"], "actor_lr": 1e38}, normalize={"rewards": False})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"config": None}, "--config is missing; give a file, or one of ant,"),
        ({"out": None}, "--out is missing; give it as in --out data.hdf5."),
        ({"episodes": "0"}, "--episodes=0 is not right: it must be at least 1."),
        ({"out": "nowhere/data.hdf5"}, "--out=nowhere/data.hdf5 cannot be written: folder 'nowhere' does not exist."),
        ({"out": "/proc/data.hdf5"}, "/proc/data.hdf5 cannot be written: No such file or directory."),
        ({"out": "."}, "--out=. cannot be written: it is a folder."),
        ({"config.collect.steps": "7"}, "collect.steps=7 does not divide into iterations of 20000 steps"),
    ],
    ids=str,
)
def test_bad_command_lines_say_one_sentence_and_leave_nothing(arguments, sentence, tmp_path, environment):
    given = {"config": str(ROOT / "experiments/hopper.py"), "out": "data.hdf5", "episodes": "4", **arguments}
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    result = subprocess.run(
        [sys.executable, "-m", "traces_jax.collect", *flags],
        env={**environment, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.startswith(f"traces_jax.collect: {sentence}")
    assert len(result.stderr.strip().splitlines()) == 1 and not result.stdout
    assert not any(tmp_path.iterdir())


def test_a_file_is_replaced_only_when_asked(tmp_path, environment):
    """What is replaced took long to make. With --overwrite the next sentence comes."""
    out = tmp_path / "data.hdf5"
    out.write_text("hours of work")
    command = [sys.executable, "-m", "traces_jax.collect", "--config", str(ROOT / "experiments/hopper.py"),
               f"--out={out}", "--config.collect.steps=7"]  # fmt: skip
    said = [
        subprocess.run([*command, *more], env=environment, cwd=ROOT, capture_output=True, text=True).stderr
        for more in ([], ["--overwrite"])
    ]
    assert said[0] == f"traces_jax.collect: --out={out} exists; choose another, or replace it with --overwrite.\n"
    assert "collect.steps=7 does not divide" in said[1]
    assert out.read_text() == "hours of work"
