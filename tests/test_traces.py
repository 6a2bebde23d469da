"""TraCeS in the loop: what it may see, what it counts, and that credits land where the guilt is."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, make_config, other_value, train

from traces_jax import config as config_lib
from traces_jax import sources, tasks
from traces_jax.config import RefitConfig
from traces_jax.core import episodes, optimize
from traces_jax.estimator import credit, network, objective, refit
from traces_jax.feedback import query, trajectories
from traces_jax.host.run import build, evaluation
from traces_jax.sources.candidates import Schedule

PROBE = {
    "task": "ProbeBudget",
    "physics": "native",
    "steps": 480,
    "environment": {"count": 4, "steps": 20},
    "ppo": {"minibatch": 20, "passes": 3},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
    "method": {"source": "traces"},
    "constraint": {"cost_limit": 3.0},
    "labels": {"interval": 2},
    "query": {"fraction": 0.25, "batch": 4},
    "refit": {"store": 16, "passes": 2, "steps": 3, "new_batch": 2, "stored_batch": 4},
}


def probe(**changes):
    merged = {
        key: {**PROBE.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return make_config(**{**PROBE, **merged})


@pytest.fixture(scope="module")
def default_run():
    """The whole run of the default settings: what was built, last state, rows."""
    return train(probe())


def test_the_store_is_written_in_place():
    """Tens of megabytes for large robots: the compiled program must not make a copy of it in every iteration."""
    program = build.build(probe(refit={"store": 37})).program
    settings = program._on_devices(program.settings)
    text = program._compiled_chunk.lower(settings, program.abstract(), np.int32(0), 1).compile().as_text()
    stores = re.findall(r"= f32\[[\d,]*37,10,2\]\S* ([\w-]+)\(", text)
    assert "get-tuple-element" in stores, "or it is not the store that is looked for"
    assert "copy" not in stores


def test_sums_begin_anew_with_each_episode():
    values = jnp.array([[1.0, 1], [2, 2], [4, 4], [8, 8]])
    ended = jnp.array([[0, 0], [1, 0], [0, 0], [1, 1]], bool)
    np.testing.assert_array_equal(episodes.running_sum(values, ended), [[1, 1], [3, 3], [4, 7], [12, 15]])


def test_a_query_every_few_iterations(default_run):
    """Eight episodes in an iteration, a quarter of them labelled, four at a time: after every second iteration."""
    config = probe()
    source = sources.make(config, tasks.make("ProbeBudget"))
    assert source.schedule(config) == Schedule(places=8, period=2, pool=16, picks=4)
    _, _, rows = default_run
    np.testing.assert_array_equal(rows["labels/trajectories"][0], [0, 4, 4, 8, 8, 12])
    # Prefixes of 2, 4, 6, 8 and 10 steps.
    np.testing.assert_array_equal(rows["labels/queries"], 5 * rows["labels/trajectories"])
    assert np.all(rows["pool/dropped"] == 0) and np.all(rows["finite"] == 1)


def test_a_budget_is_never_exceeded():
    """Six labels, four at a time; and only the whole is judged, so that a label is a query."""
    _, state, rows = train(probe(query={"budget": 6}, labels={"terminal_only": True}))
    np.testing.assert_array_equal(rows["labels/trajectories"][0], [0, 4, 4, 6, 6, 6])
    np.testing.assert_array_equal(rows["labels/queries"], rows["labels/trajectories"])
    assert int(jnp.sum(state.source.store.rows.valid)) == 6


def labels_of_the_store(store):
    """What the labeler must have said of stored episodes of ProbeBudget, which cost as much as is done."""
    total = np.cumsum(np.clip(store.rows.inputs[..., 1], 0.0, 1.0), axis=-1)
    return total[..., [1, 3, 5, 7, 9]] <= 3.0


def test_the_share_of_labels_holds_over_a_run():
    """0.11 of 10 is one label, and now and then two: there is room for two, and what is not due stays unlabelled."""
    config = probe(
        steps=800, environment={"count": 10, "steps": 10}, query={"fraction": 0.11, "batch": 1},
        refit={"passes": 1, "steps": 1},
    )  # fmt: skip
    built, state, rows = train(config)
    assert built.program.learner.source.schedule(config) == Schedule(places=10, period=1, pool=10, picks=2)
    np.testing.assert_array_equal(rows["labels/trajectories"][0], [1, 2, 3, 4, 6, 7, 8, 9])
    np.testing.assert_array_equal(rows["labels/queries"], 5 * rows["labels/trajectories"])
    kept = jax.tree.map(lambda leaf: np.asarray(leaf)[0], state.source.store.rows)
    assert kept.valid.sum() == 9
    # What the labeler must have said: an episode costs as much as is done, and 3 are allowed.
    total = np.cumsum(np.clip(kept.inputs[..., 1], 0.0, 1.0), axis=-1)[:, [1, 3, 5, 7, 9]]
    np.testing.assert_array_equal(kept.labels[kept.valid], total[kept.valid] <= 3.0)


@pytest.mark.parametrize(
    ("fraction", "count", "batch", "expected"),
    [
        (0.11, 10, 1, Schedule(places=10, period=1, pool=10, picks=2)),
        (0.06, 20, 1, Schedule(places=20, period=1, pool=20, picks=2)),
        (0.07, 100, 1, Schedule(places=100, period=1, pool=100, picks=7)),
        (0.06, 20, 5, Schedule(places=20, period=5, pool=100, picks=6)),
        (0.01, 10, 1, Schedule(places=10, period=10, pool=100, picks=1)),
    ],
)
def test_the_places_of_a_query_hold_all_that_falls_due(fraction, count, batch, expected):
    config = probe(
        steps=10 * count, environment={"count": count, "steps": 10}, query={"fraction": fraction, "batch": batch}
    )
    assert sources.Traces(tasks.make("ProbeBudget")).schedule(config) == expected
    seen = expected.places * expected.period * jnp.arange(1001)
    due = query.newly_due(fraction, seen[:-1], seen[1:])
    assert due.max() <= expected.picks and due.sum() == round(fraction * int(seen[-1]))


def test_the_share_of_labels_holds_where_episodes_end_early():
    """How many there will be is not known beforehand."""
    config = probe(task="test_diagnostics:Stumble", query={"fraction": 0.3, "batch": 1}, steps=800)
    built, state, rows = train(config)
    schedule = built.program.learner.source.schedule(config)
    assert schedule == Schedule(places=16, period=1, pool=16, picks=5)
    kept = np.cumsum(rows["episode/count"][0] - rows["pool/dropped"][0])
    assert kept[-1] > 8 * len(kept), "some must end early"
    np.testing.assert_array_equal(state.source.seen, kept[-1:])
    np.testing.assert_array_equal(rows["labels/trajectories"][0], np.floor(0.3 * kept + 0.5))


def test_single_picks_keep_the_random_share():
    """Two of five, one at a time: rounded for itself, each pick would be none at random."""
    source = sources.Traces(tasks.make("ProbeBudget"))
    for rule, share, expected in (("cv", 0.4, 400), ("cv", 0.0, 0), ("random", 0.4, 1000)):
        config = probe(query={"rule": rule, "random_share": share})
        counts = jnp.arange(1000)
        random = source._random_picks(config, counts, counts + 1)
        assert random.min() >= 0 and random.max() <= 1
        assert int(random.sum()) == expected
        np.testing.assert_array_less(np.abs(np.cumsum(random) - expected / 1000 * np.arange(1, 1001)), 0.501)


def test_what_is_certain_enough_is_not_asked_for(default_run):
    """A bound in the upper tenth leaves two of the first sixteen, a huge one none; then nothing is fitted."""
    _, _, free = default_run
    bound = float(free["query/cv_pool_90"][0, 1])
    built, state, rows = train(probe(sweep=f"query.min_cv={bound},1e9"))
    assert np.all(rows["finite"] == 1)
    assert rows["labels/trajectories"][0, 1] == 2 < free["labels/trajectories"][0, 1]
    assert rows["query/cv_picked"][0, 1] >= bound
    assert rows["refit/passes"][0, 1] > 0
    assert np.all(rows["labels/trajectories"][1] == 0) and np.all(np.nan_to_num(rows["refit/passes"][1]) == 0)
    assert not np.any(state.source.store.rows.valid[1])
    start = built.program.init()
    for now, before in zip(jax.tree.leaves(state.source.fitted), jax.tree.leaves(start.source.fitted), strict=True):
        np.testing.assert_array_equal(now[1], before[1])


@pytest.mark.parametrize(("early_end", "accepted"), [("violating", 0.0), ("by_cost", 1.0)])
def test_an_evaluation_accepts_what_the_labeler_does(early_end, accepted):
    """Episodes that end for good and cost nothing."""
    built = build.build(probe(task="ProbeDiscount", method={"source": "oracle"}, labels={"early_end": early_end}))
    result = evaluation.episodes(built, built.program.init(), 3)
    assert np.all(result["accepted"] == accepted) and np.all(result["cost"] == 0)
    summary = evaluation.summarize(result, ["seed=0"], [""])
    assert summary["lanes"][0]["accepted"] == summary["settings"][0]["accepted"]["mean"] == accepted


def test_the_policy_reads_what_the_estimator_remembers():
    """The summaries of the rollout are those of the estimator run over it."""
    config = probe()
    built = build.build(config)
    learner, state = built.program.learner, jax.tree.map(lambda leaf: leaf[0], built.program.init())
    learner = dataclasses.replace(learner, environments=type(learner.environments)())
    _, transitions, truth = learner.collect(config, state, 0)
    inputs = jnp.concatenate([transitions.observation, transitions.action], axis=-1)
    prepared = learner.source.prepare(config, state.normalizers.observation, inputs)
    began = jnp.concatenate([jnp.ones((1, 4), bool), truth.ended[:-1]])
    before, after = network.encode(state.source.fitted.params, prepared, began)
    np.testing.assert_allclose(transitions.summary, before, atol=1e-6)
    np.testing.assert_allclose(transitions.next_summary, after, atol=1e-6)
    assert float(jnp.abs(transitions.summary).max()) > 0
    context = 1 + config.estimator.hidden
    assert any(leaf.shape == (context, 8) for leaf in jax.tree.leaves(state.agent.actor.params))
    assert any(leaf.shape == (context, 8) for leaf in jax.tree.leaves(state.agent.cost_critic.params))
    assert not any(leaf.shape == (context, 8) for leaf in jax.tree.leaves(state.agent.reward_critic.params))


def test_true_costs_reach_nobody_but_the_labeler():
    """Costs changed so that no label changes: all that is learned stays the same, bit for bit."""
    config = probe()
    built = build.build(config)
    learner = dataclasses.replace(built.program.learner, environments=type(built.program.learner.environments)())
    state = jax.tree.map(lambda leaf: leaf[0], built.program.init())

    @jax.jit
    def learned(state, change):
        for index in range(2):
            state, transitions, truth = learner.collect(config, state, index)
            total = episodes.running_sum(truth.cost, truth.ended)
            # What is above the limit of 3 stays there, however much more it becomes.
            truth = dataclasses.replace(truth, cost=jnp.where(change & (total > 3.0), 10.0 * truth.cost, truth.cost))
            excess = jnp.sum(total > 3.0)
            state, _ = learner.learn(config, state, transitions, truth, index, jnp.uint32(0))
        return state, excess

    (plain, excess), (changed, _) = learned(state, False), learned(state, True)
    assert int(excess) > 0
    np.testing.assert_array_equal(plain.source.store.rows.labels, changed.source.store.rows.labels)
    for name in ("solver", "normalizers", "source"):
        for a, b in zip(jax.tree.leaves(getattr(plain, name)), jax.tree.leaves(getattr(changed, name)), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


def first_learning(config, index):
    """Learns from the first rollout as in iteration `index`. Returns state before, rollout, state after, row."""
    built = build.build(config)
    learner = dataclasses.replace(built.program.learner, environments=type(built.program.learner.environments)())
    state = jax.tree.map(lambda leaf: leaf[0], built.program.init())
    _, transitions, truth = learner.collect(config, state, 0)
    after, row = jax.jit(learner.learn)(config, state, transitions, truth, index, jnp.uint32(0))
    return state, transitions, after, row


@pytest.mark.parametrize(("early_end", "right"), [("violating", 0.0), ("by_cost", 1.0)])
def test_the_estimator_is_right_where_the_labeler_agrees(early_end, right):
    """Episodes that end for good and cost nothing; a fresh estimator accepts everything."""
    config = probe(task="ProbeDiscount", labels={"early_end": early_end}, refit={"lr": 1.0})
    _, _, _, row = first_learning(config, 1)
    assert row["estimate/accepted"] == 1.0
    assert row["estimate/right"] == row["episode/accepted"] == right
    assert row["episode/cost"] == 0.0


def test_costs_may_be_means_without_clamp():
    """Seen in the probability that the summed costs of an episode stand for."""
    config = probe(estimator={"cost": "mean", "clamp": -0.5, "initial_probability": 0.01})
    state, transitions, _, row = first_learning(config, 0)
    inputs = jnp.concatenate([transitions.observation, transitions.action], axis=-1)
    prepared = sources.Traces(tasks.make("ProbeBudget")).prepare(config, state.normalizers.observation, inputs)
    mu, sigma = network.decode(state.source.fitted.params, transitions.summary, transitions.next_summary, prepared)
    # Two episodes of ten steps in each of four environments.
    whole = lambda cost: jnp.exp(-cost.reshape(2, 10, 4).sum(axis=1)).mean()  # noqa: E731
    np.testing.assert_allclose(row["window/probability"], whole(credit.lognormal_mean(mu, sigma)), rtol=1e-5, atol=1e-6)
    assert abs(whole(credit.clamped_mean(mu, sigma, clamp=-0.5)) - row["window/probability"]) > 1e-3


def test_dead_units_are_those_of_the_estimator_whose_summaries_they_read():
    """With so large a rate, the refit of this iteration switches units off."""
    config = probe(refit={"lr": 1.0})
    state, transitions, after, row = first_learning(config, 1)
    inputs = jnp.concatenate([transitions.observation, transitions.action], axis=-1)
    prepared = sources.Traces(tasks.make("ProbeBudget")).prepare(config, state.normalizers.observation, inputs)
    seen = (transitions.summary, transitions.next_summary, prepared)
    # Of every eighth step.
    share = lambda state: network.dead_share(state.source.fitted.params, *(leaf[::8] for leaf in seen))  # noqa: E731
    assert row["estimate/dead_units"] == share(state) != share(after)


def test_seeds_side_by_side_are_seeds_alone(default_run):
    _, together, rows = train(probe(seeds=2))
    for seed, (_, alone, own) in enumerate([default_run, train(probe(seed=1))]):
        for name, values in own.items():
            if not name.startswith("stage/"):
                np.testing.assert_allclose(rows[name][seed], values[0], rtol=2e-4, atol=2e-4, err_msg=name)
        assert_trees_close(
            jax.tree.map(lambda leaf, seed=seed: leaf[seed], together.source.fitted),
            jax.tree.map(lambda leaf: leaf[0], alone.source.fitted),
            rtol=1e-3,
            atol=1e-3,
        )


def program_text(config):
    """The computation of one iteration of one lane, with all settings as constants in it."""
    built = build.build(config)
    learner = dataclasses.replace(built.program.learner, environments=type(built.program.learner.environments)())
    # Lane by lane, the text would show the structure of the whole config.
    learner.solver.one_lane_at_a_time = False
    state = jax.eval_shape(lambda: learner.init(config, jax.random.key(0)))
    return str(jax.make_jaxpr(lambda state, index: learner.iteration(config, state, index))(state, jnp.int32(0)))


@pytest.fixture(scope="module")
def default_text():
    return program_text(probe())


# The studies of README, and other settings of TraCeS.
STUDIES = {
    "method": {"order": "released"},
    "constraint": {"form": "jensen", "d": 0.5, "cost_limit": 2.0},
    "estimator": {"cost": "sample", "normalize_inputs": False, "decoder_reads": "summary", "clamp": -5.0},
    "query": {"rule": "random", "random_share": 0.0, "min_cv": 0.01, "budget": 4},
    "labels": {"noise": 0.2, "interval": 5, "terminal_only": True},
}


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        (group, name, value)
        for group, own in [*STUDIES.items(), ("estimator", {"cost": "mean"})]
        for name, value in own.items()
    ],
)
def test_every_study_is_a_setting(group, name, value, default_text):
    """Each of them alone makes another program."""
    config = probe(**{group: {name: value}})
    assert f"{group}.{name}" not in config_lib.without_effect(config)
    assert program_text(config) != default_text


@pytest.mark.parametrize(
    "change", [{}, {"query": {"min_cv": 0.01, "budget": 4}, "estimator": {"cost": "mean"}}], ids=str
)
def test_studies_run(change, default_run):
    """All together; and those that the others hide."""
    _, default, _ = default_run
    _, state, rows = train(probe(**(change or STUDIES)))
    assert np.all(rows["finite"] == 1)
    before, after = (jax.tree.leaves(s.agent) for s in (default, state))
    assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_what_has_no_effect_makes_no_other_program():
    """All such fields are changed at once."""
    for start in (
        {"method": {"source": "oracle"}},
        {"method": {"source": "ct"}},
        {"method": {"source": "rlsf"}},
        {"labels": {"terminal_only": True}, "query": {"rule": "random"}, "estimator": {"normalize_inputs": False}},
    ):
        config = probe(**start)
        changed = config
        for path in config_lib.without_effect(config):
            group, name = path.split(".")
            own = dataclasses.replace(getattr(changed, group), **{name: other_value(config_lib.all_fields()[path])})
            changed = dataclasses.replace(changed, **{group: own})
        assert changed != config
        assert program_text(changed) == program_text(config)


def fresh_estimator(**sizes):
    """For trajectories of 20 steps of three numbers."""
    mean = network.initial_mean(20)
    return network.init(jax.random.key(1), features=3, hidden=4, initial_mean=mean, mean_spread=0.6, **sizes)


def guilty_trajectories(count: int, key: jax.Array):
    """Noise, and a one in the first feature at the step at which everything is lost."""
    horizon, ends = 20, trajectories.prefix_ends(20, 1, terminal_only=False)
    noise_key, step_key, innocent_key = jax.random.split(key, 3)
    guilty = jax.random.randint(step_key, (count,), 3, 17)
    innocent = jax.random.bernoulli(innocent_key, 0.3, (count,))
    inputs = 0.3 * jax.random.normal(noise_key, (count, horizon, 3))
    mark = (jnp.arange(horizon) == guilty[:, None]) & ~innocent[:, None]
    inputs = inputs.at[..., 0].set(mark)
    cumulative = jnp.cumsum(mark, axis=1)
    return (
        trajectories.Trajectories(
            inputs=inputs,
            length=jnp.full((count,), horizon, jnp.int32),
            labels=(cumulative[:, np.asarray(ends) - 1] == 0).astype(jnp.float32),
            mask=jnp.ones((count, len(ends)), bool),
        ),
        guilty,
        innocent,
        ends,
    )


def test_the_credit_of_a_violation_begins_at_the_guilty_step():
    """Not before it, and at once. What follows a violation is violating anyway: credits there are nobody's concern."""
    rows, guilty, innocent, ends = guilty_trajectories(64, jax.random.key(0))
    estimator = fresh_estimator(layers=2, decoder=(64, 64), reads_step=False)
    settings = RefitConfig(passes=10, steps=40, new_batch=16, stored_batch=16, target_accuracy=0.999)
    model = objective.model(prepare=lambda inputs: inputs, ends=ends, clamp=-7.0)
    empty = trajectories.empty(4, 20, 3, len(ends))
    fitted, _, _ = jax.jit(functools.partial(refit.refit, refit=settings, model=model))(
        optimize.init(estimator), rows, jnp.zeros(rows.labels.shape), empty, jax.random.key(2)
    )
    fresh, guilty, innocent, _ = guilty_trajectories(100, jax.random.key(3))
    _, mu, sigma = network.apply(fitted.params, jnp.swapaxes(fresh.inputs, 0, 1))
    cost = np.asarray(credit.clamped_mean(mu, sigma, clamp=-7.0)).T
    convicted = ~np.asarray(innocent)
    first = (cost > 0.7).argmax(axis=1)  # p falls below a half by a cost of log 2
    assert np.mean(first[convicted] == np.asarray(guilty)[convicted]) > 0.95
    assert np.mean(cost[~convicted].sum(axis=1) < 0.7) > 0.95
    _, log_probability = model.judge(fitted.params, fresh)
    assert float(credit.scores(log_probability, fresh.labels, fresh.mask).accuracy) > 0.97


def test_a_refit_without_new_rows_changes_nothing():
    rows, _, _, ends = guilty_trajectories(4, jax.random.key(0))
    nothing = dataclasses.replace(rows, length=jnp.zeros_like(rows.length), mask=jnp.zeros_like(rows.mask))
    estimator = fresh_estimator(layers=1, decoder=(8,), reads_step=True)
    start = optimize.init(estimator)
    fitted, _, passes = refit.refit(
        start, nothing, jnp.zeros(rows.labels.shape), trajectories.empty(4, 20, 3, len(ends)), jax.random.key(2),
        refit=RefitConfig(), model=objective.model(prepare=lambda inputs: inputs, ends=ends, clamp=-7.0),
    )  # fmt: skip
    assert int(passes) == 0
    for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(fitted), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weight_decay_shrinks_weights_beside_the_gradient():
    """One step with it and one without: they differ by a share of the weights, and the moments know nothing of it."""
    rows, _, _, ends = guilty_trajectories(4, jax.random.key(0))
    estimator = fresh_estimator(layers=1, decoder=(8,), reads_step=True)

    @jax.jit
    def fit(weight_decay):
        settings = RefitConfig(passes=1, steps=1, lr=0.1, weight_decay=weight_decay)
        fitted, _, _ = refit.refit(
            optimize.init(estimator), rows, jnp.zeros(rows.labels.shape), trajectories.empty(4, 20, 3, len(ends)),
            jax.random.key(2), refit=settings,
            model=objective.model(prepare=lambda inputs: inputs, ends=ends, clamp=-7.0),
        )  # fmt: skip
        return fitted

    plain, decayed = fit(0.0), fit(0.5)
    assert_trees_close(decayed.optimizer, plain.optimizer, rtol=1e-5)
    expected = jax.tree.map(lambda fitted, start: fitted - 0.1 * 0.5 * start, plain.params, estimator)
    assert_trees_close(decayed.params, expected, rtol=1e-5, atol=1e-6)
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (plain.params, estimator)), strict=True))


def test_rows_are_drawn_from_filled_places_only():
    rows, _, _, _ = guilty_trajectories(6, jax.random.key(0))
    rows = dataclasses.replace(
        rows, inputs=jnp.arange(6.0)[:, None, None] * jnp.ones((6, 20, 3)), length=jnp.array([0, 20, 0, 20, 20, 0])
    )
    drawn = refit.draw(rows, jax.random.key(1), 300).inputs[:, 0, 0]
    values, counts = np.unique(drawn, return_counts=True)
    np.testing.assert_array_equal(values, [1, 3, 4])
    assert counts.min() > 60
