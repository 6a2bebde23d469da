"""Replay: the physics against the original engine's numbers (goldens/velocity.json), and the command line's manners."""

import ctypes.util
import dataclasses
import json
import pathlib
import subprocess
import sys

import av
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from traces_jax import config, replay, tasks
from traces_jax.host import errors, runtime
from traces_jax.physics import base as physics_base

GOLDENS = json.loads((pathlib.Path(__file__).parent / "goldens" / "velocity.json").read_text(encoding="utf-8"))
ANT, HALF_CHEETAH, HOPPER, WALKER2D = (
    f"Safety{robot}Velocity-v1" for robot in ("Ant", "HalfCheetah", "Hopper", "Walker2d")
)
ALL = (ANT, HALF_CHEETAH, HOPPER, WALKER2D)
CONSTANT_RUNS = {"zero": 0.0, "const0.5": 0.5, "const-0.5": -0.5}
STEPS = 200

needs_graphics = pytest.mark.skipif(
    sys.platform == "linux" and not any(ctypes.util.find_library(name) for name in ("EGL", "OSMesa")),
    reason="neither libEGL nor libOSMesa is installed (apt install libegl1 libgl1)",
)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Largest differences allowed.

    Attributes:
      state: qpos and qvel at every stored step of the constant runs.
      settled: the same from step 10 on.
      sine_until: the last step at which the sine run is still held to `state`. The program takes float32 actions, the
        original float64; contacts make that last digit grow (see `test_sine_equals_the_plain_engine`).
      reward: single rewards of the constant runs; ten times that for their sum.
      sine_reward: single rewards of the sine run's first 20 steps.
      sine_sum: the sum of all its rewards.
    """

    state: float
    settled: float
    sine_until: int
    reward: float
    sine_reward: float
    sine_sum: float


# Ant lands hard at step 5, where engine versions differ by 1e-3; its sine run is chaotic after step 20.
BOUNDS = {
    ANT: Bounds(state=2e-3, settled=1e-4, sine_until=15, reward=1e-4, sine_reward=1e-3, sine_sum=np.inf),
    HALF_CHEETAH: Bounds(state=1e-5, settled=1e-5, sine_until=30, reward=1e-5, sine_reward=1e-5, sine_sum=5e-2),
    HOPPER: Bounds(state=1e-6, settled=1e-6, sine_until=75, reward=1e-5, sine_reward=1e-5, sine_sum=1e-3),
    WALKER2D: Bounds(state=1e-5, settled=1e-5, sine_until=75, reward=1e-5, sine_reward=1e-5, sine_sum=1e-3),
}


@pytest.fixture(scope="module", params=ALL)
def native(request: pytest.FixtureRequest) -> tasks.PhysicsTask:
    return replay.make_task(request.param, "native")


def actions_of(run: str, size: int, steps: int = STEPS) -> np.ndarray:
    if run == "sine":
        return (0.8 * np.sin(0.3 * np.arange(steps)[:, None] + np.arange(size))).astype(np.float32)
    return np.full((steps, size), CONSTANT_RUNS[run], np.float32)


def play(task: tasks.PhysicsTask, actions: np.ndarray) -> dict[str, np.ndarray]:
    qpos, qvel = task.nominal
    result = replay.replay(task, replay.Inputs(qpos=qpos, qvel=qvel, actions=jnp.asarray(actions)))
    return {name: np.asarray(values) for name, values in result.items()}


def state_errors(found: dict[str, np.ndarray], golden: dict) -> dict[int, float]:
    """Largest difference in qpos and qvel at each stored step that was played."""
    return {
        int(step): max(float(np.abs(found[part][int(step) - 1] - state[part]).max()) for part in ("qpos", "qvel"))
        for step, state in golden["states"].items()
        if int(step) <= found["qpos"].shape[0]
    }


def test_masses_are_those_of_the_original(native: tasks.PhysicsTask):
    np.testing.assert_allclose(native.physics.mj_model.body_mass, GOLDENS[native.name]["body_mass"], rtol=1e-9)


@pytest.mark.parametrize("run", CONSTANT_RUNS)
def test_constant_actions_match_the_original(native: tasks.PhysicsTask, run: str):
    golden, bounds = GOLDENS[native.name]["runs"][run], BOUNDS[native.name]
    found = play(native, actions_of(run, native.action_size))
    differences = state_errors(found, golden)
    assert max(differences) == STEPS
    assert max(differences.values()) <= bounds.state, differences
    assert max(value for step, value in differences.items() if step >= 10) <= bounds.settled, differences
    np.testing.assert_allclose(found["obs0"], golden["obs0"], rtol=0, atol=1e-7)
    np.testing.assert_allclose(found["obs"][0], golden["obs_after_step1"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["reward"][:20], golden["rewards_first20"], rtol=0, atol=bounds.reward)
    assert found["reward"].sum(dtype=float) == pytest.approx(golden["reward_sum"], abs=10 * bounds.reward)
    assert found["cost"].sum() == golden["cost_sum"]


def test_sine_actions_match_the_original(native: tasks.PhysicsTask):
    golden, bounds = GOLDENS[native.name]["runs"]["sine"], BOUNDS[native.name]
    found = play(native, actions_of("sine", native.action_size))
    differences = state_errors(found, golden)
    assert max(value for step, value in differences.items() if step <= bounds.sine_until) <= bounds.state, differences
    np.testing.assert_allclose(found["obs"][0], golden["obs_after_step1"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found["reward"][:20], golden["rewards_first20"], rtol=0, atol=bounds.sine_reward)
    assert found["reward"].sum(dtype=float) == pytest.approx(golden["reward_sum"], abs=bounds.sine_sum)
    assert found["cost"].sum() == golden["cost_sum"]


def test_sine_equals_the_plain_engine(native: tasks.PhysicsTask):
    """The same float32 actions in a bare MuJoCo loop: over all steps nothing but the rounding of the output is left."""
    model = native.physics.mj_model
    data = mujoco.MjData(model)
    frame_skip = round(native.physics.environment_seconds / model.opt.timestep)
    actions = actions_of("sine", native.action_size)
    found = play(native, actions)
    for step, action in enumerate(actions):
        data.ctrl[:] = action
        mujoco.mj_step(model, data, frame_skip)
        np.testing.assert_allclose(found["qpos"][step], data.qpos, rtol=1e-7, atol=1e-7, err_msg=f"step {step}")
        np.testing.assert_allclose(found["qvel"][step], data.qvel, rtol=1e-7, atol=1e-6, err_msg=f"step {step}")


def test_mjx_matches_the_original():
    task = replay.make_task(HALF_CHEETAH, "mjx")
    golden = GOLDENS[HALF_CHEETAH]["runs"]["const0.5"]
    found = play(task, actions_of("const0.5", task.action_size, steps=20))
    differences = state_errors(found, golden)
    assert max(differences) == 20
    assert max(differences.values()) <= 1e-4, differences
    np.testing.assert_allclose(found["reward"], golden["rewards_first20"], rtol=0, atol=1e-3)


def test_position_and_velocity_are_the_base_bodys(native: tasks.PhysicsTask):
    found = play(native, actions_of("sine", native.action_size, steps=20))
    model = native.physics.mj_model
    data, twist = mujoco.MjData(model), np.zeros(6)
    body = model.body("torso").id
    for step in (0, 7, 19):
        data.qpos[:], data.qvel[:] = found["qpos"][step], found["qvel"][step]
        mujoco.mj_forward(model, data)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, twist, 0)
        np.testing.assert_allclose(found["position"][step], data.xpos[body], atol=1e-6)
        np.testing.assert_allclose(found["velocity"][step], twist[3:], atol=1e-5)
    assert np.abs(found["velocity"]).max() > 0.1


def test_root_frame_reads_axes_and_addresses():
    """A slanted slide behind another body's joint: nothing sits at index zero."""
    model = mujoco.MjModel.from_xml_string("""
      <mujoco><worldbody>
        <body><joint type="ball"/><geom size=".1"/></body>
        <body name="base" pos="1 2 3">
          <joint type="slide" axis="3 0 4"/><joint type="slide" axis="0 1 0" ref="0.5"/><geom size=".1"/>
        </body>
      </worldbody></mujoco>""")
    root = physics_base.RootFrame(model, "base")
    qpos, qvel = np.asarray([1, 0, 0, 0, 2, 0.7], np.float32), np.asarray([9, 9, 9, 5, 7], np.float32)
    np.testing.assert_allclose(root.position(qpos), [1 + 1.2, 2 + 0.2, 3 + 1.6], rtol=1e-6)
    np.testing.assert_allclose(root.velocity(qvel), [3, 7, 4], rtol=1e-6)


def test_replay_goes_on_past_the_end_of_the_episode():
    task = tasks.make(HOPPER, terminate_when_unhealthy=True)
    assert isinstance(task, tasks.PhysicsTask)
    found = play(task, actions_of("sine", 3, steps=1010))
    first = int(np.argmax(found["terminated"]))
    assert 0 < first < 900 and found["terminated"].dtype == bool
    assert np.abs(np.diff(found["qpos"][first:], axis=0)).max(axis=1).all()
    assert np.all(found["reward"][1000:] != 0)
    free = play(replay.make_task(HOPPER, "native"), actions_of("sine", 3, steps=1010))
    np.testing.assert_array_equal(found["qpos"], free["qpos"])
    assert not free["terminated"].any()


def test_the_start_may_be_given(tmp_path: pathlib.Path):
    task = replay.make_task(HALF_CHEETAH, "native")
    whole = play(task, actions_of("const0.5", 6, steps=20))
    file = tmp_path / "in.npz"
    np.savez(file, actions=actions_of("const0.5", 6, steps=10), qpos0=whole["qpos"][9], qvel0=whole["qvel"][9])
    rest = replay.replay(task, replay.load(file, task))
    np.testing.assert_array_equal(rest["obs0"], whole["obs"][9])
    for name in ("qpos", "reward", "position"):
        np.testing.assert_allclose(rest[name], whole[name][10:], atol=1e-4, err_msg=name)

    np.savez(file, actions=np.zeros((1, 6), int), qvel0=np.full(9, 0.25))
    only_velocity = replay.load(file, task)
    np.testing.assert_array_equal(only_velocity.qpos, task.nominal[0])
    np.testing.assert_array_equal(only_velocity.qvel, np.full(9, 0.25, np.float32))


def test_a_pose_sets_the_robot_down(tmp_path: pathlib.Path):
    """Against the protocol of the circle goldens: x, y, heading of (0.3, -0.2, 0.7)."""
    task = replay.make_task("SafetyCarCircle1-v0", "native")
    file = tmp_path / "in.npz"
    np.savez(file, actions=np.zeros((2, 2)), pose0=[0.3, -0.2, 0.7])
    inputs = replay.load(file, task)
    np.testing.assert_allclose(inputs.qpos[:7], [0.3, -0.2, 0.1, np.cos(0.35), 0, 0, np.sin(0.35)], atol=1e-6)
    np.savez(file, actions=np.zeros((2, 2)), pose0=[0.3, -0.2])
    with pytest.raises(errors.UserError, match=r"pose0 has shape \[2\]; it must be \[3\]: x, y, heading\."):
        replay.load(file, task)
    np.savez(file, actions=np.zeros((2, 2)), pose0=[0.3, -0.2, 0.7], qpos0=np.zeros(13))
    with pytest.raises(errors.UserError, match=r"holds both pose0 and qpos0; give one of them\."):
        replay.load(file, task)


def run_main(monkeypatch: pytest.MonkeyPatch, **values: str | None) -> int:
    """The command line in this process, where JAX is already set up."""
    monkeypatch.setattr(runtime, "setup", lambda: None)
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(**values):
        return replay.main()


GOOD = np.zeros((4, 3), np.float32)
BAD_FILES: dict[str, tuple[dict[str, object], str]] = {
    "no actions": ({"action": np.zeros((4, 3))}, r"has no array 'actions'; it must hold actions \[T, 3\]\."),
    "too wide": ({"actions": np.zeros((4, 8))}, r"actions has shape \[4, 8\]; it must be \[T, 3\] with T"),
    "one action": ({"actions": np.zeros(3)}, r"actions has shape \[3\]; it must be \[T, 3\]"),
    "no steps": ({"actions": np.zeros((0, 3))}, r"actions has shape \[0, 3\].*at least 1"),
    "nan": ({"actions": np.where(np.arange(12).reshape(4, 3) == 7, np.nan, 0)}, r"actions\[2, 1\] is nan;.*finite"),
    "too large for float32": ({"actions": np.full((4, 3), 1e60)}, r"actions\[0, 0\] is inf;.*finite"),
    "text": ({"actions": np.full((4, 3), "left")}, "actions holds str.*; it must hold real numbers"),
    "objects": ({"actions": np.full((4, 3), None)}, "is not a readable .npz file"),
    "start position": ({"actions": GOOD, "qpos0": np.zeros(5)}, r"qpos0 has shape \[5\]; it must be \[6\]\."),
    "start velocity": ({"actions": GOOD, "qvel0": np.zeros((6, 1))}, r"qvel0 has shape \[6, 1\]; it must be \[6\]\."),
    "infinite start": ({"actions": GOOD, "qvel0": np.full(6, np.inf)}, r"qvel0\[0\] is inf;.*finite"),
    "pose": (
        {"actions": GOOD, "pose0": np.zeros(3)},
        "pose0 is not right for SafetyHopperVelocity-v1; give its start as qpos0",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_one_sentence(case: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    arrays, says = BAD_FILES[case]
    file = tmp_path / "in.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    with pytest.raises(errors.UserError, match=says) as caught:
        run_main(monkeypatch, task=HOPPER, actions=str(file), out=str(tmp_path / "out.npz"))
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    assert [left.name for left in tmp_path.iterdir()] == ["in.npz"]


@pytest.mark.parametrize("content", ["missing", "folder", "text", "empty", "npy", "cut"])
def test_what_is_no_npz(content: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "in.npz"
    if content == "folder":
        file.mkdir()
    elif content == "npy":
        np.save(tmp_path / "array.npy", GOOD)
        (tmp_path / "array.npy").rename(file)
    elif content == "cut":
        np.savez(file, actions=GOOD)
        file.write_bytes(file.read_bytes()[:200])
    elif content != "missing":
        file.write_text("actions" if content == "text" else "")
    says = "does not exist; give an .npz file" if content == "missing" else "is not a readable .npz file"
    with pytest.raises(errors.UserError, match=says):
        run_main(monkeypatch, task=HOPPER, actions=str(file), out=str(tmp_path / "out.npz"))
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": None}, "--task is missing; give it as in --task SafetyAntVelocity-v1"),
        ({"out": None}, "--out is missing"),
        ({"task": "SafetyHoperVelocity-v1"}, "did you mean 'SafetyHopperVelocity-v1'?"),
        ({"task": "ProbeBudget"}, "task 'ProbeBudget' cannot be replayed: it has no simulator"),
        ({"out": "nowhere/out.npz"}, "folder '.*nowhere' does not exist"),
        ({"out": "."}, "it is a folder"),
        ({"video": "film.gif"}, "must end in .mp4 or .webm"),
        ({"video": "nowhere/film.mp4"}, "folder '.*nowhere' does not exist"),
    ],
)
def test_bad_flags_are_one_sentence(
    changes: dict[str, str | None], says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    np.savez("in.npz", actions=GOOD)
    with pytest.raises((errors.UserError, config.ConfigError), match=says):
        run_main(monkeypatch, **{"task": HOPPER, "actions": "in.npz", "out": "out.npz", **changes})
    assert [left.name for left in tmp_path.iterdir()] == ["in.npz"]


def test_unused_arrays_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    np.savez(tmp_path / "in.npz", qpos_0=np.zeros(6), actions=GOOD)
    run_main(monkeypatch, task=HOPPER, actions=str(tmp_path / "in.npz"), out=str(tmp_path / "out.npz"))
    assert "array 'qpos_0' is not used." in capsys.readouterr().err


@needs_graphics
def test_video_comes_with_the_arrays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    np.savez(tmp_path / "in.npz", actions=actions_of("sine", 3, steps=10))
    paths = {name: str(tmp_path / file) for name, file in (("out", "out.npz"), ("video", "film.mp4"))}
    assert run_main(monkeypatch, task=HOPPER, actions=str(tmp_path / "in.npz"), **paths) == 0
    assert sorted(left.name for left in tmp_path.iterdir()) == ["film.mp4", "in.npz", "out.npz"]
    with av.open(paths["video"]) as container:
        assert sum(1 for _ in container.decode(video=0)) == 4  # steps 1, 4, 7 and 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux chooses between EGL and OSMesa")
def test_without_graphics_nothing_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    np.savez(tmp_path / "in.npz", actions=GOOD)
    for name in ("MUJOCO_GL", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    paths = {name: str(tmp_path / file) for name, file in (("out", "out.npz"), ("video", "film.mp4"))}
    with pytest.raises(errors.UserError, match="no picture can be drawn on this machine"):
        run_main(monkeypatch, task=HOPPER, actions=str(tmp_path / "in.npz"), **paths)
    assert [left.name for left in tmp_path.iterdir()] == ["in.npz"]


def command(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    program = [sys.executable, "-m", "traces_jax.replay", *arguments]
    return subprocess.run(program, check=False, cwd=folder, capture_output=True, text=True)


def test_command_line_writes_every_array(tmp_path: pathlib.Path):
    np.savez(tmp_path / "in.npz", actions=np.full((5, 8), 0.5))
    result = command(tmp_path, "--task", ANT, "--physics", "native", "--actions", "in.npz", "--out", "out.npz")
    assert result.returncode == 0, result.stderr
    assert sorted(left.name for left in tmp_path.iterdir()) == ["in.npz", "out.npz"]
    with np.load(tmp_path / "out.npz") as found:
        assert {name: values.shape for name, values in found.items()} == {
            "obs0": (27,),
            "obs": (5, 27),
            "reward": (5,),
            "cost": (5,),
            "qpos": (5, 15),
            "qvel": (5, 14),
            "position": (5, 3),
            "velocity": (5, 3),
            "terminated": (5,),
        }
        golden = GOLDENS[ANT]["runs"]["const0.5"]["states"]["5"]
        np.testing.assert_allclose(found["qpos"][4], golden["qpos"], atol=2e-3)


def test_command_line_refuses_with_exit_code_2(tmp_path: pathlib.Path):
    np.savez(tmp_path / "in.npz", actions=np.zeros((5, 7)))
    result = command(tmp_path, "--task", ANT, "--actions", "in.npz", "--out", "out.npz")
    assert result.returncode == 2
    says = "in.npz: actions has shape [5, 7]; it must be [T, 8] with T of at least 1."
    assert result.stderr == f"traces_jax.replay: {says}\n"
    assert [left.name for left in tmp_path.iterdir()] == ["in.npz"]
