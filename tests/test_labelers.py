"""Who labels: oracle, people, a file, or a function, inside the compiled program or outside."""

import functools
import json
import pathlib

import chex
import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config

from traces_jax import config as config_lib
from traces_jax import sources, tasks
from traces_jax.core import halves
from traces_jax.feedback import labelers, labels
from traces_jax.feedback.trajectories import Shown, Trajectories, first_true
from traces_jax.host import errors
from traces_jax.host.label import outside, votes
from traces_jax.host.label.store import Identity, Said
from traces_jax.host.run import build, evaluation
from traces_jax.tasks import fall, probe

# --- Functions that label.


def jax_judge(shown):
    """The second action above zero is one too many."""
    return first_true(jnp.cumsum(shown.action[..., 0] > 0, axis=1) > 1, shown.length)


def numpy_judge(shown):
    assert isinstance(shown.action, np.ndarray)
    first = [np.flatnonzero(np.cumsum(own > 0) > 1)[:1] for own in shown.action[..., 0]]
    return np.asarray([int(step[0]) if step.size else -1 for step in first])


def float_judge(shown):
    return jnp.zeros(shown.length.shape)


class NoCost(helpers.NoCost, probe.Budget):
    """A task whose steps have no cost."""


TINY = {
    "task": "test_labelers:NoCost",
    "physics": "native",
    "steps": 240,
    "method": {"source": "traces"},
    "environment": {"count": 4, "steps": 10},
    "ppo": {"minibatch": 20, "passes": 1},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
    "estimator": {"decoder": (8,), "hidden": 2, "depth": 1},
    "labels": {"interval": 2, "by": "test_labelers:jax_judge"},
    "query": {"fraction": 1.0},
    "refit": {"store": 16, "passes": 1, "steps": 1},
    "run": {"evaluation_episodes": 0, "tensorboard": False},
}


def by(name):
    return make_config(**{**TINY, "labels": {"interval": 2, "by": name}})


def test_first_steps_become_labels_of_prefixes():
    """A prefix of n steps is accepted if the first violation is not among its steps 0 .. n - 1."""
    first, length = jnp.asarray([-1, 0, 3, 4, 9, 4]), jnp.asarray([10, 10, 10, 10, 10, 5])
    found = labels.prefixes(first, length, np.asarray([2, 4, 6, 10]))
    expected = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]]
    np.testing.assert_array_equal(found, expected)


def said_to(source, *answers, length=10):
    """Labels and mask, for prefixes or segments that end at 3, 6, 9 and 10."""
    config = make_config(**{**TINY, "method": {"source": source}, "labels": {"interval": 3, "by": "people"}})
    made = sources.learned(config, NoCost("NoCost", backend="native"))
    return [own.tolist() for own in votes.labels(made, config, answers, length)]


def test_answers_become_labels_of_prefixes():
    for source in ("traces", "ct"):
        said = functools.partial(said_to, source)
        every, none = [True] * 4, [False] * 4
        assert said(Said("accept")) == [[1, 1, 1, 1], every]
        assert said(Said("from", 6)) == [[1, 1, 0, 0], every]
        assert said(Said("reject")) == [[0, 0, 0, 0], [False, False, False, True]], "nothing is known of shorter ones"
        assert said(Said("unsure"))[1] == none
        # Two of three decide; where two differ, there is no label.
        assert said(Said("accept"), Said("from", 6), Said("from", 3)) == [[1, 1, 0, 0], every]
        assert said(Said("accept"), Said("from", 6)) == [[1, 1, 0, 0], [True, True, False, False]]
        assert said(Said("from", 4), length=5) == [[1, 0, 0, 0], [True, False, False, True]]


def test_answers_become_labels_of_segments():
    """RLSF: one label of each segment, then that of the whole."""
    said = functools.partial(said_to, "rlsf")
    every = [True] * 5
    assert said(Said("accept")) == [[1, 1, 1, 1, 1], every]
    assert said(Said("from", 5)) == [[1, 0, 0, 0, 0], every], "bad from the segment that has the step on"
    assert said(Said("from", 6)) == [[1, 1, 0, 0, 0], every]
    assert said(Said("reject")) == [[0, 0, 0, 0, 0], [False, False, False, False, True]]
    assert said(Said("unsure"))[1] == [False] * 5
    assert said(Said("from", 4), length=5) == [[1, 0, 0, 0, 0], [True, True, False, False, True]]


def test_rlsf_learns_from_what_is_labelled():
    """By hand: a network that says "bad" with probability 1/2 has the loss log 2 wherever there is a label."""
    config = make_config(**{**TINY, "method": {"source": "rlsf"}, "labels": {"interval": 3, "by": "people"}})
    source = sources.learned(config, NoCost("NoCost", backend="native"))
    rows = Trajectories(
        inputs=jnp.zeros((3, 10, source.features)),
        length=jnp.asarray([10, 10, 5]),
        labels=jnp.zeros((3, 5)).at[0].set(jnp.asarray([1, 0, 0, 0, 0])),
        # The first is marked, of the second only the beginning is agreed upon, the third is rejected as a whole.
        mask=jnp.asarray([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]], bool),
    )
    label, known = source._of_steps(config, rows)
    np.testing.assert_array_equal(known, [[1] * 10, [1] * 3 + [0] * 7, [1] * 5 + [0] * 5])
    np.testing.assert_array_equal(label[0], [1] * 3 + [0] * 7)
    np.testing.assert_array_equal(label[2], [0] * 10)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("test_labelers:nobody", "nobody must be a function."),
        ("nowhere:judge", "there is no module 'nowhere'; start from the folder that has it."),
        ("test_labelers:float_judge", "the first violating step or -1, not ShapeDtypeStruct [2] float32."),
    ],
)
def test_functions_that_are_not_right(name, says):
    with pytest.raises(labelers.LabelerError) as caught:
        labelers.compiles(name, tasks.make("ProbeBudget"), 2)
    assert str(caught.value).endswith(says)


def test_what_cannot_name_a_labeler_is_refused():
    with pytest.raises(config_lib.ConfigError, match=r"labels.by='nobody' is not right: it must be oracle, people, a"):
        by("nobody")


def test_where_a_function_runs():
    task = tasks.make("ProbeBudget")
    assert labelers.compiles("test_labelers:jax_judge", task, 2)
    assert not labelers.compiles("test_labelers:numpy_judge", task, 2)


def test_the_oracle_needs_a_cost():
    for changes in ({"labels": {"by": "oracle"}}, {"method": {"source": "oracle"}}):
        config = make_config(**{**TINY, **changes})
        with pytest.raises(config_lib.ConfigError, match=r"NoCost has no cost"):
            sources.make(config, tasks.make(config.task)).check(config)


# --- Whole runs.


def test_a_compiled_function_and_one_on_the_host_give_the_same_labels():
    """Of a task that has no cost. What follows is the same program, see test_label_run.py."""
    built = build.build(by("test_labelers:jax_judge"))
    program = built.program
    after, opened = program.ask(program.init(None), 0)
    assert isinstance(outside.make(built, pathlib.Path("none")), outside.Compiled)
    compiled, plain = (
        labeler.answer(built, opened, np.ones(1, bool), 0, lambda: False)
        for labeler in (outside.Compiled(), outside.Function("test_labelers:numpy_judge"))
    )
    chex.assert_trees_all_equal(compiled, plain)
    assert compiled.mask.shape == (1, 4, 5) and compiled.mask.all()
    assert np.isnan(opened.collected.truth.cost).all() and np.isnan(opened.query.rows.labels).all()
    # The second half has the same outputs, whether labels were due or not.
    absorb = functools.partial(halves.absorb, program.learner, built.lanes[0].config)
    one = jax.tree.map(lambda leaf: leaf[0], (after, opened, compiled))
    due, not_due = (jax.eval_shape(functools.partial(absorb, due=due), *one, jnp.asarray(0)) for due in (True, False))
    chex.assert_trees_all_equal_shapes_and_dtypes(due, not_due)
    # Nobody knows the costs of its evaluation, but the function labels it.
    found = evaluation.episodes(built, after, 3)
    assert np.isnan(found["cost"]).all() and np.isnan(found["accepted"]).all()
    assert found["label"].shape == (1, 3) and np.isin(found["label"], (0, 1)).all()


def clips(count):
    shown = Shown(np.zeros((3, 1)), np.full((3, 1), 1.0), np.int32(3), None)
    return [outside.Clip(Identity("seed=0", number, 0, 0), shown) for number in range(count)]


def test_labels_from_a_file(tmp_path):
    lines = [{"lane": "seed=0", "iteration": n, "environment": 0, "first": 0, "verdict": "reject"} for n in range(2)]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    labeler = outside.File(path)
    assert labeler.label(clips(2), lambda: False) == [[Said("reject")]] * 2
    with pytest.raises(errors.UserError, match=r"has no label for .*iteration=2"):
        labeler.label(clips(3), lambda: False)


def test_a_function_on_the_host_sees_all_clips_at_once():
    assert outside.Function("test_labelers:numpy_judge").label(clips(2), lambda: False) == [[Said("from", 1)]] * 2


# --- The task.


def at(height, degrees):
    return np.asarray([0.0, height - 0.7, np.deg2rad(degrees), *np.zeros(6)], np.float32)


def test_what_a_fall_is():
    """Standing, a dive, on its nose, a somersault in the air, on its back, sitting upright."""
    states = np.stack([at(0.57, 3), at(0.5, 50), at(0.7, 80), at(1.2, 180), at(0.15, 185), at(0.7, -80)])
    np.testing.assert_array_equal(fall.fallen(jnp.asarray(states)), [False, False, True, False, True, False])
    shown = Shown(np.zeros((1, 6, 1)), np.zeros((1, 6, 1)), jnp.asarray([6]), jnp.asarray(states[None]))
    assert fall.judge(shown).tolist() == [2]
    assert fall.judge(shown.replace(length=jnp.asarray([2]))).tolist() == [-1], "what follows the end is not seen"


def test_the_judge_and_the_cost_agree():
    task = tasks.make("SafetyHalfCheetahFall-v0")
    stands, falls = task.examples()
    assert stands.violation is None and not fall.fallen(jnp.asarray(stands.positions)).any()
    assert 10 < falls.violation < 100 and falls.positions.shape == (150, 9)
    step = jax.jit(task.step)
    for qpos, cost in ((at(0.7, 0), 0.0), (at(0.15, 180), 1.0)):
        after = step(task.reset_to(jnp.asarray(qpos), jnp.zeros(9)), jnp.zeros(6))
        assert float(after.info["cost"]) == cost and float(after.reward) == 0.0
