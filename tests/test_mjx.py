"""MJX: it follows the original engine, agrees with native, and trains."""

import json
import pathlib

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from helpers import make_config, train
from mujoco.mjx._src import collision_driver

from traces_jax import physics, tasks
from traces_jax.host import errors
from traces_jax.host.run import build
from traces_jax.physics import mjx as mjx_physics
from traces_jax.tasks.base import MODELS

GOLDENS = json.loads((pathlib.Path(__file__).parent / "goldens/velocity.json").read_text())


def replay(name: str, backend: str, actions: np.ndarray):
    """Qpos [T, nq], qvel [T, nv] from the nominal start."""
    task = tasks.make(name, backend=backend)
    start = task.reset_to(*task.nominal)

    def step(state, action):
        state = task.step(state, action)
        return state, (state.pipeline_state.qpos, state.pipeline_state.qvel)

    return jax.device_get(jax.jit(lambda: jax.lax.scan(step, start, jnp.asarray(actions, jnp.float32))[1])())


def test_ant_follows_the_original_through_the_impact():
    """Step 3 is before the feet touch; by step 10 they have, at ankles so steep that plain MJX turns the friction."""
    table = dict(collision_driver._COLLISION_FUNC)
    qpos, qvel = replay("SafetyAntVelocity-v1", "mjx", np.full((10, 8), 0.5))
    states = GOLDENS["SafetyAntVelocity-v1"]["runs"]["const0.5"]["states"]
    for step, tolerance in ((3, 1e-4), (10, 1e-3)):
        np.testing.assert_allclose(qpos[step - 1], states[str(step)]["qpos"], atol=tolerance)
        np.testing.assert_allclose(qvel[step - 1], states[str(step)]["qvel"], atol=10 * tolerance)
    assert table == collision_driver._COLLISION_FUNC  # MJX itself is left as it was


def test_hopper_agrees_with_native_over_an_iteration():
    """The same actions, contacts included."""
    actions = 0.8 * np.sin(0.3 * np.arange(40)[:, None] + np.arange(3))
    for ours, reference in zip(
        replay("SafetyHopperVelocity-v1", "mjx", actions), replay("SafetyHopperVelocity-v1", "native", actions),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_allclose(ours, reference, atol=2e-4)


@pytest.mark.parametrize("name", ["SafetyBallRun-v0", "SafetyDroneRun-v0"])
def test_run_tasks_agree_with_native(name):
    """Drag, contacts, and forces that the task works out are the same."""
    size = tasks.make(name).action_size
    actions = 0.3 * np.sin(0.3 * np.arange(6)[:, None] + np.arange(size))
    for ours, reference in zip(replay(name, "mjx", actions), replay(name, "native", actions), strict=True):
        np.testing.assert_allclose(ours, reference, atol=1e-3)


def first_rows(backend: str) -> dict[str, np.ndarray]:
    """Trains for two iterations. Returns the rows [S] of the first, times left out."""
    config = make_config(
        task="SafetyHopperVelocity-v1", physics=backend, steps=80,
        environment={"count": 2, "steps": 20, "reset_each_iteration": False},
        ppo={"minibatch": 20, "passes": 2}, policy={"hidden": (8,)}, critic={"hidden": (8,)},
    )  # fmt: skip
    _, _, rows = train(config)
    assert np.all(rows["finite"] == 1) and np.all(rows["environment/broken"] == 0)
    return {name: values[:, 0] for name, values in rows.items() if not name.startswith("stage/")}


def test_training_end_to_end():
    """Before the policies part, the engines give the same rows."""
    ours, reference = first_rows("mjx"), first_rows("native")
    assert ours.keys() == reference.keys()
    for name, values in ours.items():
        np.testing.assert_allclose(values, reference[name], rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.xml")), ids=lambda path: path.stem)
def test_bounds_of_the_solver_do_not_change_a_step(path):
    """In C, where steps are cheap: the same states with and without the bounds, under random controls."""
    free = mujoco.MjModel.from_xml_path(str(path))
    bound = mjx_physics._tuned(free)
    assert path.stem == "point_circle" or bound.opt.ls_iterations < free.opt.ls_iterations
    data, other = mujoco.MjData(free), mujoco.MjData(bound)
    random = np.random.default_rng(1)
    low, high = np.where(free.actuator_ctrllimited, free.actuator_ctrlrange.T, [[-1.0], [1.0]])
    for step in range(400):
        if step % 5 == 0:
            data.ctrl[:] = random.uniform(low, high)
        for name in ("qpos", "qvel", "qacc_warmstart", "ctrl"):
            getattr(other, name)[:] = getattr(data, name)
        mujoco.mj_step(free, data)
        mujoco.mj_step(bound, other)
        np.testing.assert_allclose(other.qvel, data.qvel, atol=1e-6)


def test_warp_is_refused_in_a_sentence_where_it_cannot_run(monkeypatch):
    assert build.choose_physics("auto", "cpu", "warp") == "native"
    with pytest.raises(errors.UserError, match=r"mjx.impl='warp' is not right here: it runs on NVIDIA GPUs, not on cp"):
        build.choose_physics("mjx", "cpu", "warp")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.UserError, match=r"the package warp-lang is missing; mjx.impl=jax runs everywhere\.$"):
        build.choose_physics("auto", "gpu", "warp")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert build.choose_physics("auto", "gpu", "warp") == "mjx-warp"
    with pytest.raises(physics.PhysicsError, match=r"mjx.impl='warp' is not right for ball_run.xml: it has no drag"):
        tasks.make("SafetyBallRun-v0", backend="mjx-warp")
