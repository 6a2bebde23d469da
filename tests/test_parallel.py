"""Lanes and devices: where something runs must not change what it computes."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from helpers import assert_trees_close, make_config, train, with_agent

from traces_jax import config as config_lib
from traces_jax import solvers
from traces_jax.core import learner, parallel
from traces_jax.host.run import build

# Hopper's contacts amplify rounding; within these few steps they do not have the time.
SMALL = {
    "task": "SafetyHopperVelocity-v1",
    "physics": "native",
    "steps": 80,
    "environment": {"count": 2, "steps": 20, "reset_each_iteration": False},
    "ppo": {"minibatch": 20, "passes": 2},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
}


def on_devices(config: config_lib.Config, count: int) -> parallel.Program:
    """The program of a config on `count` of the devices."""
    lanes = config_lib.lanes(config)
    grid = parallel.grid(len(lanes), config.environment.count, jax.devices()[:count])
    task = build.make_task(config, "native")
    core = learner.make(config, task, environments=grid.environments, one_lane_at_a_time=True)
    return parallel.make(lanes, core, grid)


def finish(program: parallel.Program, iterations: int):
    """All iterations from the start; the state on the host, keys as numbers."""
    state = program.init()
    for index in range(iterations):
        state, rows = program.chunk(state, index, 1)
    return jax.device_get(state.replace(key=jax.random.key_data(state.key))), jax.device_get(rows)


def lane(tree, index: int):
    """One lane of a tree, its axis kept."""
    return jax.tree.map(lambda leaf: leaf[index : index + 1], tree)


@pytest.mark.parametrize("devices", [1, 2])
def test_two_seeds_equal_two_single_runs(devices):
    """Batched by vmap on one device, and cut over two."""
    both, _ = finish(on_devices(make_config(**SMALL, seeds=2), devices), 2)
    for seed in (0, 1):
        alone, _ = finish(on_devices(make_config(**SMALL, seed=seed), 1), 2)
        assert_trees_close(lane(both, seed).agent, alone.agent, rtol=1e-4, atol=1e-5)
        assert_trees_close(lane(both, seed).windows, alone.windows, rtol=1e-4, atol=1e-5)
    first, second = (jax.tree.leaves(lane(both, seed).agent)[0] for seed in (0, 1))
    assert not np.allclose(first, second)  # otherwise the comparison above would say nothing


def test_environments_cut_over_devices_change_nothing():
    """One lane on one device, and its environments on two."""
    config = make_config(**SMALL)
    one, rows_one = finish(on_devices(config, 1), 2)
    two, rows_two = finish(on_devices(config, 2), 2)
    assert_trees_close(two.agent, one.agent, rtol=1e-4, atol=1e-5)
    assert_trees_close(rows_two, rows_one, rtol=1e-3, atol=1e-4)


def test_lanes_in_one_batch_equal_one_at_a_time():
    """The accelerator's way of updating and the CPU's."""
    program = on_devices(make_config(**SMALL, seeds=2), 1)
    together = solvers.make(make_config(**SMALL, seeds=2), program.learner.task, one_lane_at_a_time=False)
    batched = dataclasses.replace(program, learner=dataclasses.replace(program.learner, solver=together))
    assert_trees_close(finish(batched, 2)[0].agent, finish(program, 2)[0].agent, rtol=1e-4, atol=1e-5)


def test_a_swept_lane_equals_a_run_with_that_setting():
    config = make_config(**SMALL, sweep="ppo.actor_lr=1e-4,1e-2; constraint.cost_limit=5")
    _, swept, _ = train(config)
    for index, rate in enumerate((1e-4, 1e-2)):
        changed = {**SMALL, "ppo": {**SMALL["ppo"], "actor_lr": rate}, "constraint": {"cost_limit": 5.0}}
        _, alone, _ = train(make_config(**changed))
        assert_trees_close(lane(swept.agent, index), alone.agent, rtol=1e-4, atol=1e-5)


def test_one_trace_and_no_host_traffic(monkeypatch):
    """Later chunks, and a state that came from a file, reuse the first compiled program."""
    traces = []
    real = learner.Learner.iteration
    monkeypatch.setattr(learner.Learner, "iteration", lambda *args: traces.append(1) or real(*args))
    program = on_devices(make_config(**SMALL), 2)
    state, _ = program.chunk(program.init(), 0, 1)
    first = len(traces)
    assert first > 0
    with jax.transfer_guard_device_to_host("disallow"):
        state, _ = program.chunk(state, 1, 1)
    program.chunk(program.place(state.replace(solver=jax.device_get(state.solver))), 2, 1)
    assert len(traces) == first


def test_iterations_may_be_cut_into_chunks_of_any_length():
    """Three one by one, and two and one: the same rows and the same state, bit for bit."""
    program = on_devices(make_config(**SMALL), 1)
    results = []
    for lengths in [(1, 1, 1), (2, 1)]:
        state, done, rows = program.init(), 0, []
        for length in lengths:
            state, new = program.chunk(state, done, length)
            done += length
            rows.append(new["episode/count"])
        results.append((jax.device_get(state.agent), np.concatenate(rows, axis=1)))
    assert results[1][1].shape == (1, 3)
    chex.assert_trees_all_equal(*results)


@pytest.mark.parametrize("source", ["oracle", "traces"])
def test_a_lane_that_becomes_non_finite_freezes_alone(source):
    """A huge rate ruins the second lane at once. The first equals one beside a sound lane, bit for bit."""
    settings = {
        "task": "ProbeBudget", "steps": 240, "environment": {"count": 4, "steps": 20}, "ppo": SMALL["ppo"],
        "policy": {"hidden": (8,)}, "critic": {"hidden": (8,)}, "method": {"source": source},
        "refit": {"store": 16, "passes": 1},
    }  # fmt: skip
    start = on_devices(make_config(**settings, sweep="ppo.actor_lr=1e-4,3e38"), 1).init()
    learned = lambda state: (state.solver, state.normalizers, getattr(state.source, "fitted", None))  # noqa: E731
    before = jax.device_get(lane(learned(start), 1))
    ruined, rows = finish(on_devices(make_config(**settings, sweep="ppo.actor_lr=1e-4,3e38"), 1), 3)
    sound, _ = finish(on_devices(make_config(**settings, sweep="ppo.actor_lr=1e-4,2e-4"), 1), 3)
    np.testing.assert_array_equal(ruined.diverged, [-1, 0])
    np.testing.assert_array_equal(rows["finite"], [[1], [0]])
    chex.assert_trees_all_equal(lane(learned(ruined), 1), before)
    chex.assert_trees_all_equal(lane(ruined, 0), lane(sound, 0))


def test_a_lane_keeps_the_iteration_in_which_it_became_non_finite():
    program = on_devices(make_config(**SMALL), 1)
    state, _ = program.chunk(program.init(), 0, 1)
    poisoned = program.place(with_agent(state, jax.tree.map(lambda leaf: leaf * np.nan, jax.device_get(state.agent))))
    state, rows = program.chunk(poisoned, 1, 2)
    np.testing.assert_array_equal(state.diverged, [1])
    np.testing.assert_array_equal(rows["finite"], [[0, 0]])


def test_grid_uses_what_divides():
    devices = jax.devices()
    assert dict(parallel.grid(1, 20, devices).mesh.shape) == {"lane": 1, "environment": 2}
    assert dict(parallel.grid(4, 20, devices).mesh.shape) == {"lane": 2, "environment": 1}
    assert dict(parallel.grid(3, 20, devices).mesh.shape) == {"lane": 1, "environment": 2}
    assert dict(parallel.grid(3, 7, devices).mesh.shape) == {"lane": 1, "environment": 1}
