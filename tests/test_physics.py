"""What both simulators promise beyond MuJoCo itself: drag, sensors after the step, sharing between threads."""

import concurrent.futures
import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from traces_jax import physics

# No gravity, no contact: what slows these bodies is drag alone.
_TWO_LINKS = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="base">
      <freejoint/>
      <geom type="box" size=".3 .2 .1" mass="2" contype="0" conaffinity="0"/>
      <body pos=".3 0 0" euler="0 40 20">
        <joint name="hinge" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 .5 0 0" size=".05" mass="1" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
</mujoco>
"""
_FALLING = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body name="base"><freejoint/><geom size=".1" mass="2" contype="0" conaffinity="0"/><site name="here"/></body>
  </worldbody>
  <actuator><motor site="here" gear="0 0 1 0 0 0"/></actuator>
  <sensor><velocimeter site="here"/><accelerometer site="here"/></sensor>
</mujoco>
"""


@pytest.fixture
def model(tmp_path):
    def write(text, **settings):
        path = tmp_path / f"model{len(list(tmp_path.iterdir()))}.xml"
        path.write_text(text)
        return physics.Model(path=path, base="base", **{"frame_skip": 5, **settings})

    return write


@pytest.mark.parametrize("backend", ["native", "mjx"])
def test_drag_on_one_body_follows_its_recurrence(backend, model):
    room = physics.make(backend, model(_FALLING.replace("<option", '<option gravity="0 0 0"'), drag=0.5))
    qvel = jnp.array([3.0, -4.0, 0.0, 0.0, 0.0, 2.0])
    state = room.step(room.reset(jnp.asarray(room.mj_model.qpos0, jnp.float32), qvel), jnp.zeros((1,)))

    speed, spin = 5.0, 2.0
    for _ in range(5):
        speed -= 0.01 * 0.5 * speed * (1 + speed)
        spin -= 0.01 * 0.5 * spin * (1 + spin)

    chex.assert_trees_all_close(state.qvel, jnp.array([0.6 * speed, -0.8 * speed, 0, 0, 0, spin]), atol=2e-6)


def test_drag_on_linked_bodies_agrees_between_simulators(model):
    description = model(_TWO_LINKS, drag=0.3)
    states = []
    for backend in ("native", "mjx"):
        room = physics.make(backend, description)
        qpos = jnp.asarray(room.mj_model.qpos0, jnp.float32).at[7].set(0.4)
        qvel = jnp.array([1.0, -2.0, 0.5, 0.7, -1.5, 2.0, 3.0])
        states.append(room.step(room.reset(qpos, qvel), jnp.array([0.3])))
    chex.assert_trees_all_close(states[0].qvel, states[1].qvel, atol=2e-5)

    free = physics.make("native", model(_TWO_LINKS))
    unhindered = free.step(free.reset(qpos, qvel), jnp.array([0.3]))
    assert jnp.max(jnp.abs(unhindered.qvel - states[0].qvel)) > 0.05


def test_drag_is_refused_for_runge_kutta(model):
    with pytest.raises(ValueError, match="RK4"):
        physics.make("native", model(_TWO_LINKS.replace("<option", '<option integrator="RK4"'), drag=0.1))


@pytest.mark.parametrize("backend", ["native", "mjx"])
def test_sensors_are_those_of_the_state_after_the_step(backend, model):
    """A falling body reads its velocity, and its acceleration without gravity's part: push / mass."""
    room = physics.make(backend, model(_FALLING, senses=True))
    start = room.reset(jnp.asarray(room.mj_model.qpos0, jnp.float32), jnp.array([1.0, 0, 0, 0, 0, 0]))
    chex.assert_trees_all_close(start.sensors, jnp.array([1.0, 0, 0, 0, 0, 0]), atol=1e-6)
    after = room.step(start, jnp.array([4.0]))
    # MuJoCo clamps no control that has no range.
    fallen = 5 * 0.01 * (4.0 / 2.0 - 9.81)
    chex.assert_trees_all_close(after.sensors, jnp.array([1.0, 0, fallen, 0, 0, 2.0]), atol=1e-5)


def test_sensors_are_absent_unless_asked_for(model):
    room = physics.make("native", model(_FALLING))
    assert room.reset(jnp.asarray(room.mj_model.qpos0, jnp.float32), jnp.zeros((6,))).sensors is None


def velocity_after_a_step(description):
    """Of a body that falls from rest: gravity times 0.05 s."""
    room = physics.make("native", description)
    return float(
        room.step(room.reset(jnp.asarray(room.mj_model.qpos0, jnp.float32), jnp.zeros(6)), jnp.zeros(1)).qvel[2]
    )


def test_a_model_changed_in_python_is_another_model(model):
    """One file, read twice; once gravity is changed after reading."""

    class Heavy(physics.Model):
        def load(self):
            loaded = super().load()
            loaded.opt.gravity[2] *= 2.0
            return loaded

    plain = model(_FALLING)
    heavy = Heavy(**{field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)})
    assert velocity_after_a_step(plain) == pytest.approx(-0.4905, abs=1e-5)
    assert velocity_after_a_step(heavy) == pytest.approx(-0.981, abs=1e-5)
    assert velocity_after_a_step(plain) == pytest.approx(-0.4905, abs=1e-5)


def test_a_model_with_another_included_file_is_another_model(model, tmp_path):
    description = model(_FALLING.replace("<option", '<include file="shared.xml"/><option'))
    found = []
    for gravity in (-1.0, -2.0):
        (tmp_path / "shared.xml").write_text(f'<mujoco><option gravity="0 0 {gravity}"/></mujoco>')
        found.append(velocity_after_a_step(description))
    np.testing.assert_allclose(found, [-0.05, -0.1], atol=1e-6)


def test_a_registered_model_keeps_what_it_was(model):
    """Whoever paints or measures with `mj_model` may change it: what was compiled steps as before."""
    # A mass of its own: the first to register a model decides.
    room = physics.make("native", model(_FALLING.replace('mass="2"', 'mass="3"')))
    room.mj_model.opt.gravity[2] = 0.0
    start = room.reset(jnp.asarray(room.mj_model.qpos0, jnp.float32), jnp.zeros(6))
    assert float(room.step(start, jnp.zeros(1)).qvel[2]) == pytest.approx(-0.4905, abs=1e-5)


def test_the_warm_start_of_the_solver_travels_with_the_state(model):
    """Stepping in turns with others gives what the engine gives alone, bit for bit."""
    text = _FALLING.replace('contype="0" conaffinity="0"', "").replace(
        "<worldbody>", '<worldbody><geom type="plane" size="1 1 1" pos="0 0 -.1"/>'
    )
    description = model(text)
    room = physics.make("native", description)
    step = jax.jit(jax.vmap(room.step))
    starts = jnp.array([[0.3, 0.1, 0, 0, 0, 0], [0.0, 0.0, -1.0, 2.0, 0, 0], [1.0, 1.0, 0, 0, 3.0, 0]])
    state = jax.vmap(lambda qvel: room.reset(jnp.asarray(room.mj_model.qpos0, jnp.float32), qvel))(starts)
    alone = []
    for qvel in np.asarray(starts, np.float64):
        data = mujoco.MjData(room.mj_model)
        data.qvel[:] = qvel
        data.qacc_warmstart[:] = 0
        alone.append(data)
    for _ in range(20):
        state = step(state, jnp.zeros((3, 1)))
        for data in alone:
            mujoco.mj_step(room.mj_model, data, 5)
    np.testing.assert_array_equal(state.qpos, np.stack([data.qpos for data in alone]).astype(np.float32))
    np.testing.assert_array_equal(state.qvel, np.stack([data.qvel for data in alone]).astype(np.float32))


def test_many_threads_step_one_model_without_disturbing_each_other(model):
    """More calls at once than there are workspaces."""
    room = physics.make("native", model(_TWO_LINKS, drag=0.3))
    qpos = jnp.asarray(room.mj_model.qpos0, jnp.float32)

    @jax.jit
    def run(spin):
        start = room.reset(qpos, jnp.zeros((7,)).at[3].set(spin))
        return jax.lax.fori_loop(0, 50, lambda _, state: room.step(state, jnp.zeros((1,))), start).qvel

    spins = [math.sin(index) for index in range(32)]
    expected = [np.asarray(run(spin)) for spin in spins]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda spin: np.asarray(run(spin)), spins))
    np.testing.assert_array_equal(together, expected)
