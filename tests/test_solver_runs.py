"""Every solver trains: on a task whose answer is known, in a batch of lanes, and from outside this package."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ROOT, assert_trees_close, make_config
from jax import lax

from traces_jax import config as config_lib
from traces_jax import solvers, tasks
from traces_jax.core import batch as batch_lib
from traces_jax.core import learner, rollout
from traces_jax.core.spread import Spread

OWN = "examples.crpo:CRPO"
SMALL = {
    "task": "ProbeBudget",
    "environment": {"count": 8, "steps": 30},
    "policy": {"hidden": (16,), "activation": "tanh"},
    "critic": {"hidden": (16,), "activation": "tanh"},
    "normalize": {"observations": False, "rewards": False, "costs": "never"},
}


def make(solver, iterations):
    return make_config(
        **SMALL,
        steps=iterations * 240,
        ppo={"minibatch": 60, "passes": 4, "actor_lr": 3e-3, "actor_lr_decay": False, "critic_lr": 1e-2,
             "target_kl": 0.05, "gamma": 0.9, "entropy": 0.0},
        trust_region={"target_kl": 0.03, "critic_passes": 4, "critic_lr": 1e-2},
        cup={"target_kl": 0.03},
        lagrange={"initial": 1.0, "lr": 0.05, "window": 24},
        saute={"unsafe_reward": -3.0},
        constraint={"cost_limit": 2.0},
        method={"source": "oracle", "solver": solver},
        run={"chunk": iterations, "checkpoint_every": iterations},
    )  # fmt: skip


def make_learner(config):
    return learner.make(config, tasks.make(config.task), environments=Spread(), one_lane_at_a_time=False)


def run(config, seed=0):
    """All iterations of one lane. Returns its last state and rows [iterations]."""
    made = make_learner(config)

    @jax.jit
    def iterations(key):
        step = lambda state, index: made.iteration(config, state, index)  # noqa: E731
        return lax.scan(step, made.init(config, key), jnp.arange(config.iterations))

    return iterations(jax.random.key(seed))


@pytest.mark.parametrize("solver", [*config_lib.SOLVERS, OWN])
def test_a_budget_is_spent_and_not_exceeded(solver):
    """Every unit of return costs a unit: the best return is the limit of 2, or 10 for those who ignore the cost.

    A policy of pure noise earns and costs 3.2.
    """
    _, rows = run(make(solver, 80))
    assert np.all(rows["finite"] == 1)
    late = rows["episode/cost"][-20:].mean()
    if solver in ("ppo", "trpo"):
        assert late > 8.0
    else:
        # Saute keeps away from the limit at first, beyond which every step is punished.
        assert (0.5 if "saute" in solver else 1.5) < late < 2.5, late


@pytest.mark.parametrize("solver", ["cup", "cpo"])
def test_lanes_in_a_batch_equal_single_ones(solver):
    config = make(solver, 2)
    made = make_learner(config)
    keys = jax.random.split(jax.random.key(1), 2)
    alone = jax.jit(made.init)(config, keys[1])
    both = jax.jit(jax.vmap(made.init, in_axes=(None, 0)))(config, keys)
    step = lambda state: made.iteration(config, state, jnp.int32(0))[0]  # noqa: E731
    alone, both = jax.jit(step)(alone), jax.jit(jax.vmap(step))(both)
    # A conjugate gradient enlarges the last digits, and sums under vmap have another order.
    bound = 2e-2 if config.method.solver in ("cpo", "trpo_saute", "trpo_lag", "trpo") else 2e-3
    assert_trees_close(jax.tree.map(lambda leaf: leaf[1], both.solver), alone.solver, rtol=5e-3, atol=bound)


def test_saute_reads_its_budget_wherever_the_policy_plays():
    """Evaluation, videos and diagnostics use this player: z is what the costs so far say, and is whole at the start."""
    config = make("trpo_saute", 1)
    made = make_learner(config)
    state = jax.jit(made.init)(config, jax.random.key(0))
    keys = rollout.environment_keys(jax.random.key(5), 0, 3)
    noise = jax.random.normal(jax.random.key(6), (20, 3, 1))
    _, transitions, truth = rollout.run(made.task, made.player(config, state), made.start(config, keys), noise, keys)
    budget = 2.0 * np.mean(0.999 ** np.arange(10))
    left = np.ones(3)
    for step in range(20):
        np.testing.assert_allclose(transitions.carried[step, :, 0], left, rtol=1e-4)
        left = np.maximum((left - truth.cost[step] / budget) / 0.999, -5.0)
        np.testing.assert_allclose(transitions.next_carried[step, :, 0], left, rtol=1e-4, atol=1e-5)
        left = np.where(truth.ended[step], 1.0, left)
    assert truth.ended.sum() == 6 and (transitions.next_carried < 0).any()


def test_the_value_at_the_end_of_an_episode_knows_what_is_left():
    """As published, the bootstrap reads z as it is; as released, as if nothing had been spent."""
    config = make("ppo_saute", 1)
    made = make_learner(config)
    state = jax.jit(made.init)(config, jax.random.key(0))
    _, transitions, truth = jax.jit(made.collect)(config, state, 0)
    critic = state.agent.reward_critic.params
    for version in ("as_published", "as_released"):
        own = dataclasses.replace(config, method=dataclasses.replace(config.method, solver_version=version))
        batch, _, _ = batch_lib.make(
            own, made.solver, state.agent, state.normalizers, transitions, truth.cost,
            tolerance=jnp.float32(1.0), learned=False,
        )  # fmt: skip
        step = 9  # where the first episodes end, by the time limit
        assert np.all(transitions.truncated[step] == 1)
        left = transitions.next_carried[step] if version == "as_published" else jnp.ones((8, 1))
        seen = jnp.concatenate([transitions.next_observation[step], left], axis=-1)
        reward = jnp.where(transitions.next_carried[step, :, 0] > 0, transitions.reward[step], -3.0)
        expected = reward + 0.9 * made.solver.modules.value(critic, seen)
        np.testing.assert_allclose(batch.reward_target[step], expected, rtol=1e-4, atol=1e-5)


# --- From outside --------------------------------------------------------------------------------------------------


def test_the_example_is_as_short_as_it_says():
    assert len((ROOT / "examples/crpo.py").read_text().strip().splitlines()) <= 60


WHOLE = """
from traces_jax.solvers import Solver
class Own(Solver):
    def init(self, config, key, observation_size, context_size): return None
    def update(self, config, state, batch, verdict, key, progress): return state, {}
"""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (WHOLE + "1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        (WHOLE.replace("def update", "def renew"), "is not right: Own must define update."),
        (WHOLE.replace("Own(Solver)", "Own"), "Own must be a class derived from traces_jax.solvers.Solver."),
    ],
    ids=range(3),
)
def test_solvers_that_are_not_right(source, says, tmp_path, monkeypatch, request):
    path = tmp_path / f"own_solver_{request.node.callspec.id}.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(solvers.SolverError) as caught:
        config = make_config(task="ProbeBudget", method={"source": "oracle", "solver": f"{path.stem}:Own"})
        solvers.make(config, tasks.make("ProbeBudget"), one_lane_at_a_time=True)
    assert str(caught.value).startswith(f"method.solver '{path.stem}:Own' ") and says in str(caught.value)


def test_what_is_no_solver_is_refused_with_the_config():
    with pytest.raises(config_lib.ConfigError, match=r"method\.solver='ppolag' is not right: it must be one of"):
        make_config(method={"source": "oracle", "solver": "ppolag"})
