"""Episodes that span iterations: cut anywhere, they are what they would be in one piece."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ROOT, assert_trees_close, make_config, train

from traces_jax import config as config_lib
from traces_jax import sources, tasks
from traces_jax.config import ConfigError, presets
from traces_jax.core import episodes, learner, rollout, spanning
from traces_jax.core.spread import Spread
from traces_jax.estimator import credit, network

HORIZON = 8
COUNT = 6


def settings(steps, /, **changes):
    return make_config(
        **{
            "task": "ProbeHistory",
            "physics": "native",
            "steps": COUNT * steps * 40,
            "environment": {"count": COUNT, "steps": steps, "reset_each_iteration": False},
            "ppo": {"minibatch": 2 * steps, "passes": 1},
            "policy": {"hidden": (4,)},
            "critic": {"hidden": (4,)},
            "estimator": {"hidden": 3, "decoder": (4,)},
            "method": {"source": "traces", "solver": "ppo_saute"},
            "constraint": {"cost_limit": 2.0, "form": "jensen"},
            "labels": {"interval": 2},
            "pool": {"tracked": COUNT},
            # Rare queries, so that the pool holds all episodes.
            "query": {"fraction": 0.5, "batch": 20},
            "refit": {"store": 64, "passes": 1, "steps": 2, "new_batch": 2, "stored_batch": 2},
            **changes,
        }
    )


def make(config):
    task = tasks.make(config.task, backend="native")
    return learner.make(config, task, environments=Spread(), one_lane_at_a_time=False)


@dataclasses.dataclass
class Played:
    """Rollouts one after the other, without learning."""

    transitions: rollout.Transitions
    truth: rollout.Truth
    cost: jax.Array
    state: learner.LearnerState
    row: dict


def play(config, *, iterations, refit_at=None, seed=3):
    """Iterations without a policy update, with the same noise however they are cut.

    refit_at: the iteration in which the estimator is replaced by another one, as a refit would do.
    """
    made = make(config)
    key, steps = jax.random.key(seed), config.environment.steps
    noise = jax.random.normal(jax.random.key(9), (iterations * steps, COUNT, 1))
    state = jax.jit(made.init)(config, key)

    def iteration(state, index, noise, refitted):
        memory = made.source.resume(config, state.source, state.runner.memory.source, jnp.arange(COUNT))
        runner = state.runner.replace(memory=state.runner.memory.replace(source=memory))
        keys = rollout.environment_keys(key, 0, COUNT)
        runner, transitions, truth = rollout.run(made.task, made.player(config, state), runner, noise, keys)
        state = dataclasses.replace(state, runner=runner)
        collected = sources.Collected(
            transitions=transitions,
            truth=truth,
            statistics=state.normalizers.observation,
            windows=state.windows,
            iteration=index,
            plays_mean=jnp.zeros(COUNT, bool),
            memory=runner.memory.source,
        )
        source, reading = made.source.observe(config, state.source, collected)
        if refitted:
            source = dataclasses.replace(source, fitted=made.source.fresh(config, jax.random.key(77)))
        source, verdict, row = made.source.verdict(config, source, collected, reading, refitted, key)
        return dataclasses.replace(state, source=source), transitions, truth, verdict.cost, row

    compiled = jax.jit(iteration, static_argnums=3)
    found = []
    for index in range(iterations):
        part = noise[index * steps : (index + 1) * steps]
        state, *rest = compiled(state, jnp.int32(index), part, index == refit_at)
        found.append(rest)
    joined = [
        jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts) for parts in list(zip(*found, strict=True))[:3]
    ]
    return made, Played(*joined, state=state, row=found[-1][3])


STEPS = 24


@pytest.fixture(scope="module")
def whole():
    """Three times a horizon in one piece."""
    return play(settings(STEPS), iterations=1)[1]


@pytest.mark.parametrize(("steps", "tracked"), [(HORIZON // 2, 2), (3, COUNT)])
def test_however_it_is_cut_it_is_the_same(whole, steps, tracked):
    """Transitions, budgets, episode sums, labels, credits and what is open at the end.

    Of two tracked environments only those can be labelled, but all are counted.
    """
    config = settings(steps, pool={"tracked": tracked})
    _, cut = play(config, iterations=STEPS // steps)
    assert_trees_close(cut.transitions, whole.transitions, atol=1e-5)
    assert_trees_close(cut.truth, whole.truth, atol=1e-6)
    np.testing.assert_allclose(cut.cost, whole.cost, rtol=1e-5, atol=1e-7)
    ours, theirs = cut.state.source, whole.state.source
    # Six environments start at 0, 1, 2, 4, 5 and 6 steps: the first has three whole episodes, the others two.
    assert int(whole.truth.ended.sum()) == int(theirs.seen) == int(ours.seen) == 13
    assert_trees_close(ours.judged, theirs.judged, rtol=1e-5)
    for name in ("length", "memory", "sums"):
        assert_trees_close(getattr(ours.open, name), getattr(theirs.open, name), rtol=1e-4, atol=1e-6)
    rows, expected = by_time(ours.pool, steps), by_time(theirs.pool, STEPS)
    assert len(expected) == 13
    assert rows.keys() == {when for when in expected if when[0] in spanning.tracked(config)}
    for when, row in rows.items():
        assert_trees_close(row, expected[when], atol=1e-6)


def by_time(pool, steps):
    """The trajectories of a pool by environment and time of their first step since the start of the run."""
    origin, rows = pool.rows.origin, pool.rows.rows
    return {
        (int(origin.environment[n]), int(origin.iteration[n]) * steps + int(origin.first[n])): jax.tree.map(
            lambda leaf, n=n: leaf[n], rows
        )
        for n in range(rows.count)
        if rows.length[n]
    }


def test_saute_budgets_live_on(whole):
    """What the transitions of the test above carry is a budget that is spent, and full only in a new episode."""
    before, after = whole.transitions.carried[..., 0], whole.transitions.next_carried[..., 0]
    ended = np.asarray(whole.transitions.ended)[:-1]
    np.testing.assert_array_equal(before[1:], np.where(ended, 1.0, after[:-1]))
    assert (after < before).all()


def test_only_tracked_environments_keep_their_steps():
    config = settings(HORIZON // 2, pool={"tracked": 2})
    np.testing.assert_array_equal(spanning.tracked(config), [0, 3])
    state = jax.eval_shape(make(config).init, config, jax.random.key(0))
    # Seven steps of an open episode and four of a rollout, in whole rollouts; observation and action.
    assert state.source.open.past.inputs.shape == (12, 2, 2)


def test_after_a_refit_open_episodes_are_encoded_anew():
    """Of tracked environments as if the new estimator had always been there. Others go on from what they had."""
    config = settings(3, pool={"tracked": 3})
    made, played = play(config, iterations=4, refit_at=3)
    source, transitions = played.state.source, played.transitions
    inputs = made.source.prepare(
        config,
        played.state.normalizers.observation,
        jnp.concatenate([transitions.observation, transitions.action], axis=-1),
    )
    began = jnp.concatenate([jnp.ones((1, COUNT), bool), transitions.ended[:-1]])
    *summaries, carry = network.proceed(source.fitted.params, None, inputs, began)
    mu, sigma = network.decode(source.fitted.params, *summaries, inputs)
    expected = credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp)
    memory = jnp.where(transitions.ended[-1][:, None, None], 0.0, jnp.moveaxis(carry, 1, 0))
    total = jnp.where(transitions.ended[-1], 0.0, episodes.running_sum(expected, transitions.ended)[-1])
    summed = episodes.running_sum(expected, transitions.ended)
    cost = credit.tempered(summed, expected)[-3:]
    tracked = np.asarray([0, 2, 4])
    other = np.asarray([1, 3, 5])
    assert (np.asarray(source.open.length)[[1, 3, 5]] > 3).any(), "an episode must have begun before the last rollout"

    def far(ours, theirs, where):
        return np.abs(np.asarray(ours)[..., where] - np.asarray(theirs)[..., where]).max()

    by_environment = np.moveaxis(source.open.memory, 0, -1), np.moveaxis(memory, 0, -1)
    for ours, theirs in (by_environment, (source.open.sums["costs"], total), (played.cost[-3:], cost)):
        assert far(ours, theirs, tracked) < 1e-5
        assert far(ours, theirs, other) > 1e-4


def test_episodes_that_fit_into_a_rollout_keep_nothing():
    config = settings(HORIZON, environment={"count": COUNT, "steps": HORIZON})
    state = jax.eval_shape(make(config).init, config, jax.random.key(0))
    assert state.source.open is None and state.runner.shortened is None


def test_starts_by_hand():
    """Ten environments, of which two play the mean action; ten steps at most."""
    config = make_config(
        environment={"count": 10, "steps": 5, "reset_each_iteration": False},
        constraint={"policy": "both", "share": 0.2},
        ppo={"minibatch": 8},
    )
    np.testing.assert_array_equal(spanning.elapsed(config, 10), [0, 5, 0, 1, 2, 3, 5, 6, 7, 8])


@pytest.mark.parametrize("shape", [(6, 4, 8), (20, 10, 1000), (200, 100, 1000), (7, 30, 8)])
def test_no_more_episodes_end_than_there_are_places(shape):
    count, steps, horizon = shape
    config = make_config(
        environment={"count": count, "steps": steps, "reset_each_iteration": False},
        constraint={"policy": "both", "share": 0.3},
        ppo={"minibatch": 1},
        steps=count * steps,
    )
    for which in (np.arange(count), np.linspace(0, count - 1, 5).astype(int)):
        starts = spanning.elapsed(config, horizon)[which]
        times = np.arange(1, 4 * max(horizon, steps) + 1)[:, None]
        ends = np.sum((times + starts) % horizon == 0, axis=1)
        for window in (steps, 3 * steps):
            worst = max(np.sum(ends[at : at + window]) for at in range(len(ends) - window + 1))
            assert worst <= spanning.most_ends(len(which), window, horizon, early=False) <= worst + 4


@pytest.fixture(scope="module")
def learned():
    """A run with one environment of each policy, whose episodes end in different iterations."""
    config = settings(
        3,
        environment={"count": 2, "steps": 3, "reset_each_iteration": False},
        constraint={"cost_limit": 2.0, "policy": "both", "share": 0.5},
        method={"source": "traces", "solver": "ppo_lag"},
        ppo={"minibatch": 3, "passes": 1},
        query={"fraction": 1.0, "batch": 1},
        run={"chunk": 16, "checkpoint_every": 16},
        steps=96,
    )
    return train(config)


def test_the_multiplier_moves_where_episodes_end_and_only_there(learned):
    _, _, rows = learned
    ends = rows["episode/count"][0] + rows["deployed/count"][0]
    assert ends.tolist() == [0, 0, 2, 0, 0, 2, 0, 2] * 2, "at steps 8, 16, 24, 32, 40, 48"
    moved = np.diff(rows["constraint/multiplier"][0], prepend=np.float32(1.0)) != 0
    np.testing.assert_array_equal(moved, ends > 0)


def test_labels_follow_episodes_that_ended(learned):
    """Four episodes end in three iterations; all of them are due, and none is labelled twice."""
    _, state, rows = learned
    np.testing.assert_array_equal(rows["labels/trajectories"][0][-1], 12)
    assert np.isfinite(rows["refit/passes"][0]).any() and (rows["pool/dropped"] == 0).all()
    assert int(state.kept.iteration[0]) in np.flatnonzero(rows["episode/count"][0]), "measured when it was kept"


def test_labels_need_as_many_tracked_environments():
    config = settings(4, pool={"tracked": 2})
    with pytest.raises(ConfigError, match=r"pool\.tracked=2 is not right: .*; 3 or more, or a lower"):
        make(config).source.check(config)
    whole_only = settings(4, environment={"count": COUNT, "steps": 4})
    with pytest.raises(ConfigError, match=r"environment\.steps=4 is not right: .*reset_each_iteration=false, would"):
        make(whole_only).source.check(whole_only)


# The run that asks people has fewer steps than four iterations of the preset.
WIDE = [path for path in sorted((ROOT / "experiments").glob("*.py")) if path.stem != "cheetah_fall"]


@pytest.mark.parametrize("path", WIDE, ids=lambda path: path.stem)
def test_the_preset_fits_every_experiment(path):
    """Steps, minibatches and chunks divide, and enough environments are tracked."""
    tree = importlib.import_module(f"experiments.{path.stem}").get_config().to_dict() | {"preset": "accelerator"}
    config = config_lib.from_dict(presets.apply(tree, {"preset"}))
    assert config.spans and (config.environment.count, config.environment.steps) == (2000, 20)
    assert config.pool.tracked >= config.query.fraction * config.environment.count
    given = tree | {"environment": {"count": 500}}
    named = presets.apply(given, {"preset", "environment.count"})["environment"]
    assert (named["count"], named["steps"]) == (500, 20), "the command line is stronger"
