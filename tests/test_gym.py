"""The tasks in Gymnasium: registered lightly, passes Gymnasium's own checks, and keeps the task's numbers."""

import ctypes.util
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils import env_checker

import traces_jax.gym
from traces_jax import tasks

needs_graphics = pytest.mark.skipif(
    sys.platform == "linux" and not any(ctypes.util.find_library(name) for name in ("EGL", "OSMesa")),
    reason="neither libEGL nor libOSMesa is installed (apt install libegl1 libgl1)",
)


def make(name: str, **settings) -> gymnasium.Env:
    return gymnasium.make(f"traces_jax/{name}", **settings)


def test_every_task_but_the_probes_is_registered():
    expected = [name for name in tasks.NAMES if not name.startswith("Probe")]
    registered = [spec.id for spec in gymnasium.registry.values() if spec.namespace == "traces_jax"]
    assert list(traces_jax.gym.NAMES) == expected
    assert sorted(registered) == sorted(f"traces_jax/{name}" for name in expected)


def test_import_stays_light():
    code = "import sys, traces_jax.gym; print({'jax', 'mujoco', 'brax'} & set(sys.modules))"
    assert fresh_process(code) == "set()\n"


def test_fresh_process_needs_no_import_first():
    code = """
import gymnasium
environment = gymnasium.make("traces_jax.gym:traces_jax/SafetyHopperVelocity-v1")
environment.reset(seed=0)
print("observation", environment.step(environment.action_space.sample())[0].shape)
"""
    assert "observation (11,)\n" in fresh_process(code)


def fresh_process(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", traces_jax.gym.NAMES)
def test_gymnasiums_own_checks(name: str):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env_checker.check_env(make(name).unwrapped, skip_render_check=True)
    unbounded = "A Box observation space m"  # minimum or maximum is infinite, as it should be
    assert not [str(warning.message) for warning in caught if unbounded not in str(warning.message)]


@needs_graphics
def test_gymnasiums_own_checks_of_pictures():
    environment = make("SafetyAntVelocity-v1", render_mode="rgb_array", width=160, height=120)
    env_checker.check_env(environment.unwrapped)
    environment.reset(seed=0)
    before = environment.render()
    for _ in range(5):
        environment.step(np.full(8, 0.5, np.float32))
    after = environment.render()
    environment.close()
    assert isinstance(before, np.ndarray) and isinstance(after, np.ndarray)
    assert before.shape == (120, 160, 3) and before.std() > 10
    assert np.any(before != after)
    assert environment.metadata["render_fps"] == 20


def test_spaces_and_types():
    environment = make("SafetyWalker2dVelocity-v1")
    assert environment.action_space == gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)
    assert environment.observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    observation, info = environment.reset(seed=1)
    assert observation.dtype == np.float32 and info["cost"] == 0.0
    _, reward, terminated, truncated, info = environment.step(environment.action_space.sample())
    assert [type(value) for value in (reward, terminated, truncated, info["cost"])] == [float, bool, bool, float]


def test_seeds_decide_the_episodes():
    def episodes(seed: int) -> np.ndarray:
        environment = make("SafetyHalfCheetahVelocity-v1")
        environment.action_space.seed(0)
        rows = []
        for start in (environment.reset(seed=seed), environment.reset()):
            rows.append(start[0])
            rows.extend(environment.step(environment.action_space.sample())[0] for _ in range(5))
        return np.asarray(rows)

    first, again, other = episodes(3), episodes(3), episodes(4)
    np.testing.assert_array_equal(first, again)
    assert np.all(first[[0, 6]] != other[[0, 6]])
    assert np.all(first[0] != first[6])  # a reset without a seed goes on to another episode


def test_the_clock_truncates_and_does_not_terminate():
    environment = make("SafetyHalfCheetahVelocity-v1")
    environment.reset(seed=0)
    action = np.zeros(6, np.float32)
    ends = [environment.step(action)[2:4] for _ in range(1000)]
    assert ends[:-1] == [(False, False)] * 999
    assert ends[-1] == (False, True)


def test_a_fall_terminates_only_when_asked():
    for asked in (False, True):
        environment = make("SafetyHopperVelocity-v1", terminate_when_unhealthy=asked)
        environment.reset(seed=0)
        action = np.full(3, -0.5, np.float32)
        ends = [environment.step(action)[2:4] for _ in range(100)]
        assert any(terminated for terminated, _ in ends) == asked
        assert not any(truncated for _, truncated in ends)


def test_cost_is_one_above_the_speed_limit():
    environment = make("SafetyHopperVelocity-v1")
    environment.reset(seed=0)
    infos = [environment.step(np.full(3, 0.5, np.float32))[4] for _ in range(100)]
    costs = [info["cost"] for info in infos]
    assert costs == [float(info["speed"] > 0.7402) for info in infos]
    assert set(costs) == {0.0, 1.0}
