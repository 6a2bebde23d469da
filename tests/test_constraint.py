"""What is constrained, on which episodes it is measured, and which policy is deployed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config, train

from traces_jax import tasks
from traces_jax.core import agent, batch, episodes, kept, normalize, spread
from traces_jax.core import learner as learner_lib
from traces_jax.host.run import evaluation
from traces_jax.sources import correction, traces

SMALL = {
    "task": "ProbeBudget", "physics": "native", "steps": 160, "environment": {"count": 4, "steps": 10},
    "ppo": {"minibatch": 10, "passes": 1}, "policy": {"hidden": (4,)}, "critic": {"hidden": (4,)},
}  # fmt: skip


# --- The cost ------------------------------------------------------------------------------------------------------


def test_costs_are_divided_by_their_deviation_in_this_iteration_by_hand():
    """And by a hundredth of the tolerance more, which is all that is left where costs are alike or tiny."""
    tolerance, guilty = jnp.float32(0.1), jnp.zeros((1000, 2)).at[7].set(1.0)
    deviation = np.sqrt(0.001 * 0.999)
    np.testing.assert_allclose(batch.cost_unit(guilty, tolerance), deviation + 0.001, rtol=1e-5)
    np.testing.assert_allclose(batch.cost_unit(1e-3 * guilty, tolerance), 1e-3 * deviation + 0.001, rtol=1e-5)
    np.testing.assert_allclose(batch.cost_unit(jnp.full((5, 2), 3.0), tolerance), 0.001, rtol=1e-5)


# --- The limit -----------------------------------------------------------------------------------------------------


def test_the_required_probability_rises_by_hand():
    """From 0.5 to 0.9 in the first 60 % of the run; never above d, and at d all the time from initial_d=1."""
    rising = make_config(constraint={"d": 0.9, "initial_d": 0.5, "ramp": 0.6}).constraint
    found = [float(traces.required(rising, jnp.float32(progress))) for progress in (0.0, 0.3, 0.6, 1.0)]
    np.testing.assert_allclose(found, [0.5, 0.7, 0.9, 0.9], rtol=1e-6)
    for d in (0.9, 0.3):
        constant = make_config(constraint={"d": d, "initial_d": 1.0}).constraint
        np.testing.assert_allclose(traces.required(constant, jnp.float32(0.0)), d, rtol=1e-6)


def test_the_policy_to_deploy_is_held_to_the_final_limit():
    """Not to the one of now, which lets one in two violate at first."""
    _, state, rows = train(
        make_config(**SMALL, method={"source": "traces"}, constraint={"initial_d": 0.5, "ramp": 1.0, "d": 0.9})
    )
    np.testing.assert_allclose(rows["constraint/limit"][0], [0.5, 0.4, 0.3, 0.2], rtol=1e-5)
    kept_at = int(state.kept.iteration[0])
    gap = rows["constraint/deployed"][0, kept_at] - (0.1 - 0.05)
    np.testing.assert_allclose(state.kept.gap[0], gap, atol=1e-5)


# --- Which episodes are measured -----------------------------------------------------------------------------------


def test_both_policies_are_measured():
    windows = episodes.init_windows(10, 2, ("costs",))
    assert (windows.noisy.size, windows.mean.size) == (10, 2)
    ended, plays_mean = jnp.asarray([[True, True, False]]), jnp.asarray([True, False, False])
    windows = episodes.push_windows(windows, ended, plays_mean, costs=jnp.asarray([[7.0, 3.0, 99.0]]))
    np.testing.assert_array_equal(episodes.both(windows, "costs"), [3.0, 7.0])
    only = episodes.push_windows(
        episodes.init_windows(10, 2, ("costs",)), ended & plays_mean, plays_mean, costs=jnp.ones((1, 3))
    )
    assert np.isnan(episodes.both(only, "costs")).tolist() == [True, False], "no noisy episode has ended"


@pytest.mark.parametrize(
    ("policy", "noisy", "mean", "expected"),
    [
        ("mean", 3.0, 7.0, 7.0),
        ("noisy", 3.0, 7.0, 3.0),
        # After a quarter of the run, a quarter of what the mean action is worse.
        ("both", 3.0, 7.0, 4.0),
        ("both", 7.0, 3.0, 7.0),
    ],
)
def test_the_mean_action_counts_more_and_more(policy, noisy, mean, expected):
    config = make_config(**SMALL, constraint={"policy": policy})
    assert config.iterations == 4
    found = episodes.constrained(jnp.float32(noisy), jnp.float32(mean), config, jnp.int32(1))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isnan(episodes.constrained(jnp.float32(np.nan), jnp.float32(mean), config, jnp.int32(1))) == (
        policy != "mean"
    )


def test_the_noise_is_bounded_more_and_more():
    """From 1 to 0.1: half of the logarithm after half of the run. With 1 there is no bound."""
    at = [float(agent.most_noise(0.0, 0.1, jnp.float32(progress))) for progress in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(np.exp(at), [1.0, 0.1**0.5, 0.1], rtol=1e-6)
    assert agent.most_noise(0.0, 1.0, jnp.float32(0.5)) == np.inf
    _, state, _ = train(make_config(**{**SMALL, "policy": {"hidden": (4,), "final_noise": 0.01}}))
    # The last update is the fourth of four, three quarters through.
    np.testing.assert_allclose(state.agent.actor.params["params"]["log_std"], 0.75 * np.log(0.01), rtol=1e-5)


def test_residuals_of_each_policy_fade_by_hand():
    none = correction.no_residuals()
    found = correction.add_residuals(
        none,
        values=jnp.asarray([1.0, -0.5, 9.0, 0.25]),
        known=jnp.asarray([True, True, False, True]),
        plays_mean=jnp.asarray([False, True, False, False]),
        memory=4,
    )
    np.testing.assert_allclose(found.total, [0.75 * 1.0 + 0.25, -0.5])
    np.testing.assert_allclose(found.weight, [0.75 + 1.0, 1.0])
    for _ in range(200):
        found = correction.add_residuals(found, jnp.ones(1), jnp.ones(1, bool), jnp.zeros(1, bool), memory=4)
    np.testing.assert_allclose([found.total[0], found.weight[0]], [4.0, 4.0], rtol=1e-5)


def test_some_environments_play_the_mean_action_and_are_not_learned_from():
    config = make_config(**SMALL, constraint={"policy": "both", "share": 0.25})
    assert (config.mean_environments, config.samples) == (1, 30)
    learner = learner_lib.make(config, tasks.make(config.task), environments=spread.Spread(), one_lane_at_a_time=False)
    state = learner.init(config, jax.random.key(0))
    _, transitions, _ = learner.collect(config, state, 0)
    mean = learner.act(config, state, transitions.observation, None, jnp.zeros_like(transitions.action))
    off = np.abs(transitions.action - mean).max(axis=(0, 2))
    np.testing.assert_allclose(off[0], 0.0, atol=1e-6)
    assert np.all(off[1:] > 0.1)
    seen = []
    original = batch.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "make", lambda *given, **named: seen.append(given[4]) or original(*given, **named))
        learner.iteration(config, state, jnp.int32(0))
    np.testing.assert_array_equal(seen[0].action, transitions.action[:, 1:])


def test_rows_tell_the_policies_apart():
    _, _, rows = train(make_config(**SMALL, constraint={"policy": "both", "share": 0.25}))
    np.testing.assert_array_equal(rows["deployed/count"], np.ones((1, 4)))
    np.testing.assert_array_equal(rows["episode/count"], np.full((1, 4), 3.0))
    _, _, rows = train(make_config(**SMALL))
    assert np.all(rows["deployed/count"] == 0) and np.all(np.isnan(rows["deployed/cost"]))


# --- Which policy is deployed --------------------------------------------------------------------------------------


def policy(number):
    empty = normalize.init((1,))
    statistics = batch.Normalizers(empty, None, normalize.init(()), normalize.init(()))
    return kept.Policy(actor=jnp.float32(number), normalizers=statistics, learned=None)


def test_the_newest_policy_that_satisfies_the_constraint_is_kept():
    found = kept.init(policy(0))
    held = []
    for iteration, gap in enumerate([np.nan, 0.5, 0.7, 0.2, -0.1, -0.05, 0.3, np.nan]):
        found = kept.update(found, policy(iteration), jnp.int32(iteration), jnp.float32(gap), jnp.bool_(True))
        held.append(int(found.policy.actor))
    # None is measured, then the least violating one, then the newest that satisfies it.
    assert held == [0, 1, 1, 3, 4, 5, 5, 5]
    assert (int(found.iteration), float(found.gap)) == (5, pytest.approx(-0.05))
    # A measure of episodes that ended earlier says nothing of this policy.
    again = kept.update(found, policy(8), jnp.int32(8), jnp.float32(-0.05), jnp.bool_(False))
    assert int(again.iteration) == 5


def test_half_a_tolerance_is_the_margin_of_the_kept_policy():
    assert [float(kept.gap(*map(jnp.float32, of))) for of in ((0.05, 0.1, 0.1), (25.0, 25.0, 2.5))] == [0.0, 1.25]


def test_the_kept_policy_is_what_is_evaluated():
    built, state, _ = train(make_config(**SMALL))
    learner = built.program.learner
    assert learner.deployed(dataclasses.replace(state, kept=None)).agent is state.agent
    other = jax.tree.map(lambda leaf: leaf + 1.0, state.agent.actor.params)
    changed = dataclasses.replace(state.kept, policy=dataclasses.replace(state.kept.policy, actor=other))
    deployed = learner.deployed(dataclasses.replace(state, kept=changed))
    jax.tree.map(np.testing.assert_array_equal, deployed.agent.actor.params, other)
    np.testing.assert_array_equal(
        jax.tree.leaves(deployed.agent.reward_critic)[0], jax.tree.leaves(state.agent.reward_critic)[0]
    )


@pytest.mark.parametrize(
    ("accepted", "count", "bound"), [(60, 60, 0.05 ** (1 / 60)), (0, 60, 0.0), (1, 2, 1 - np.sqrt(0.95)), (1, 1, 0.05)]
)
def test_a_certificate_by_hand(accepted, count, bound):
    found = evaluation.certificate(np.arange(count) < accepted)
    assert found == {"labels": count, "accepted": accepted, "bound": pytest.approx(bound, rel=1e-6)}


@pytest.mark.parametrize(("share", "expected"), [(0.2, 0.5), (0.0, 0.2)])
def test_random_picks_are_of_the_mean_action(share, expected):
    """Two of ten episodes are: half of the picks where the measure is corrected, two of ten where it is not."""
    plays_mean = jnp.arange(10) < 2
    draw = jax.vmap(lambda key: jnp.argmax(correction.chance(key, plays_mean, share=share)))
    picked = draw(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(jnp.mean(plays_mean[picked]), expected, atol=0.03)
