"""The entry point for Brax."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.wrappers import training
from brax.training.agents.ars import train as ars

import traces_jax.brax
from traces_jax import tasks


def test_brax_wrappers_run_a_task_to_its_end():
    """Ten steps of effort 1 to an end by the clock, twice. Brax's wrappers know only keys of the old kind."""
    env = training.wrap(traces_jax.brax.make("ProbeBudget"), episode_length=10)
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), 3))
    step = jax.jit(env.step)
    costs, ends = [], []
    for _ in range(20):
        state = step(state, jnp.ones((3, 1)))
        costs.append(np.asarray(state.info["cost"]))
        ends.append(np.asarray(state.done))
    np.testing.assert_array_equal(costs, np.ones((20, 3)))
    np.testing.assert_array_equal(state.info["truncation"], np.ones(3))
    np.testing.assert_array_equal(np.asarray(ends)[:, 0], ([0] * 9 + [1]) * 2)


def test_a_trainer_of_brax_runs():
    """Augmented random search, with its evaluations: these add a metric of their own to each state."""
    progress = []
    make_policy, params, _ = ars.train(
        environment=traces_jax.brax.make("ProbeBudget"),
        num_timesteps=160,
        episode_length=10,
        number_of_directions=4,
        num_eval_envs=2,
        num_evals=2,
        progress_fn=lambda steps, metrics: progress.append((int(steps), metrics)),
    )
    steps, metrics = progress[-1]
    assert steps >= 160
    np.testing.assert_array_equal(metrics["eval/avg_episode_length"], 10)
    assert np.isfinite(metrics["eval/episode_reward"])
    action, _ = make_policy(params)(jnp.zeros((1, 1)), jax.random.PRNGKey(0))
    assert action.shape == (1, 1)


def test_steps_are_those_of_the_task():
    env, task = traces_jax.brax.make("SafetyHopperVelocity-v1"), tasks.make("SafetyHopperVelocity-v1")
    assert (env.observation_size, env.action_size, env.backend) == (11, 3, "native")
    theirs, ours = env.reset(jax.random.key(3)), task.reset(jax.random.key(3))
    for _ in range(3):
        theirs, ours = env.step(theirs, jnp.ones((3,))), task.step(ours, jnp.ones((3,)))
    np.testing.assert_array_equal(theirs.obs, ours.obs)
    np.testing.assert_array_equal(theirs.reward, ours.reward)


def test_what_a_task_remembers_is_kept():
    """The drone's rotors, which its next step needs."""
    env, task = traces_jax.brax.make("SafetyDroneRun-v0"), tasks.make("SafetyDroneRun-v0")
    theirs, ours = env.reset(jax.random.key(3)), task.reset(jax.random.key(3))
    for _ in range(2):
        theirs, ours = env.step(theirs, jnp.ones((4,))), task.step(ours, jnp.ones((4,)))
    np.testing.assert_array_equal(theirs.info["rotors"], ours.info["rotors"])
    np.testing.assert_array_equal(theirs.obs, ours.obs)


def test_training_on_a_cpu_does_not_load_brax_or_mjx():
    """Together they would take half of the time to the first iteration."""
    code = (
        "import sys, traces_jax.train; from traces_jax import tasks; tasks.make('SafetyHopperVelocity-v1');"
        "print({'brax', 'mujoco.mjx'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
