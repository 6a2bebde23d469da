"""C-T and RLSF, whose learned costs read one step at a time: numbers by hand, and all that is done with them."""

import dataclasses
import json
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ROOT, assert_trees_close, train
from test_import_torch import AUTHORS, SHARED, save_arrays
from test_pretrain import config_of, record, write
from test_traces import probe

from traces_jax import score, sources, tasks
from traces_jax.core import normalize, optimize
from traces_jax.feedback import labels, novelty
from traces_jax.feedback.trajectories import Trajectories
from traces_jax.host import errors
from traces_jax.host.data import import_torch, prior
from traces_jax.host.data import pretrain as host
from traces_jax.solvers.saute import discounted

# Ten steps, one number of observation and one of action.
TASK = tasks.make("ProbeBudget")
NO_STATISTICS = normalize.init((1,))


def constant(params, bias):
    """The network with an output that is the same for all inputs."""
    zero = jax.tree.map(jnp.zeros_like, params)
    last = max(name for name in zero["params"] if name.startswith("Dense"))
    zero["params"][last]["bias"] = jnp.full((1,), bias)
    return zero


def rows_of(source, config, length, said):
    """Trajectories of these lengths [N] with these labels [N, P]."""
    length = jnp.asarray(length)
    inputs = jax.random.normal(jax.random.key(0), (len(length), TASK.horizon, 2))
    return Trajectories(inputs, length, jnp.asarray(said, jnp.float32), source.mask(config, length))


# --- C-T -----------------------------------------------------------------------------------------------------------


def state_of(params):
    """As much of a source's state as tells its budget."""
    return types.SimpleNamespace(fitted=optimize.init(params))


def half_a_unit(config):
    """C-T with a threshold of 2 and costs of 1/2."""
    source = sources.CT(TASK)
    fresh = source.fresh(config, jax.random.key(0)).params
    np.testing.assert_allclose(jnp.exp(fresh.log_threshold), math.e, rtol=1e-6)
    network = constant(fresh.network, math.log(0.5))
    return source, dataclasses.replace(fresh, network=network, log_threshold=jnp.log(2.0))


def test_the_logit_is_the_threshold_minus_the_costs():
    config = config_of(method={"source": "ct"})
    source, params = half_a_unit(config)
    # Two environments; an episode of the second ends after three steps.
    ended = jnp.zeros((5, 2), bool).at[2, 1].set(True)
    said = source.read(config, params, jnp.zeros((5, 2, 2)), ended, {})
    np.testing.assert_allclose(said.cost, np.full((5, 2), 0.5), rtol=1e-6)
    logit = np.asarray([[1.5, 1.5], [1.0, 1.0], [0.5, 0.5], [0.0, 1.5], [-0.5, 1.0]])
    np.testing.assert_allclose(said.log_probability, -np.log1p(np.exp(-logit)), rtol=1e-5)
    assert source.sums(config)
    assert float(source.budget(config, state_of(params))) == pytest.approx(2.0)


def test_the_loss_of_prefixes_by_hand():
    config = config_of(method={"source": "ct"}, labels={"interval": 5})
    source, params = half_a_unit(config)
    # Of ten steps: prefixes of 5 and 10, logits -0.5 and -3. Of three steps: only the whole, logit 0.5.
    rows = rows_of(source, config, [10, 3, 0], [[1, 0], [0, 1], [1, 1]])
    model = source.model(config, NO_STATISTICS)
    softplus = lambda x: math.log1p(math.exp(x))  # noqa: E731
    expected = (softplus(0.5) + softplus(-3.0) + softplus(-0.5)) / 3
    assert float(model.loss(params, rows, jax.random.key(0))) == pytest.approx(expected, rel=1e-5)
    cost, log_probability = model.judge(params, rows)
    assert cost.shape == (10, 3)
    np.testing.assert_allclose(log_probability[0], [-softplus(0.5), -softplus(3.0)], rtol=1e-5)
    np.testing.assert_allclose(log_probability[1, 1], -softplus(-0.5), rtol=1e-5)


def cost_budget(inputs=3, widths=(4, 2), seed=0):
    """Tensors of the authors' network for these widths."""
    random = np.random.default_rng(seed)
    tensors = {"log_budget": np.asarray([0.7])}
    for index, width in enumerate(widths):
        linear, norm = f"mlp_log_cost.{4 * index}", f"mlp_log_cost.{4 * index + 2}"
        tensors |= {
            f"{linear}.weight": random.normal(size=(width, inputs)),
            f"{linear}.bias": random.normal(size=width),
        }
        tensors |= {f"{norm}.weight": random.normal(size=width), f"{norm}.bias": random.normal(size=width)}
        inputs = width
    tensors |= {"mlp_log_cost_output.weight": random.normal(size=(1, inputs))}
    tensors |= {"mlp_log_cost_output.bias": random.normal(size=1)}
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def as_the_authors(tensors, inputs):
    """Costs [...] and threshold, written out in float64."""
    x = inputs.astype(np.float64)
    for index in range(sum(name.endswith("weight") for name in tensors) // 2):
        linear, norm = f"mlp_log_cost.{4 * index}", f"mlp_log_cost.{4 * index + 2}"
        x = np.maximum(x @ tensors[f"{linear}.weight"].T + tensors[f"{linear}.bias"], 0)
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x * tensors[f"{norm}.weight"] + tensors[f"{norm}.bias"]
    log_cost = x @ tensors["mlp_log_cost_output.weight"].T + tensors["mlp_log_cost_output.bias"]
    return np.exp(log_cost[..., 0]), float(np.exp(tensors["log_budget"][0]))


def check_scores(path, inputs):
    """Scores of a file of the authors against `as_the_authors`."""
    found = score.load(path, None).scores(jnp.asarray(inputs))
    cost, threshold = as_the_authors(import_torch.state_dict(path), inputs)
    np.testing.assert_allclose(found["mean"], cost, rtol=1e-4)
    logit = threshold - np.cumsum(cost, axis=1)
    np.testing.assert_allclose(found["log_probability"], -np.logaddexp(0.0, -logit), rtol=1e-3, atol=1e-4)


def test_files_of_the_baseline_are_scored(tmp_path):
    path = save_arrays(tmp_path / "a.pt", cost_budget())
    found = import_torch.load(path)
    assert found.features == 3
    settings = {"method.source": "ct", "ct.hidden": (4, 2), "ct.normalize_inputs": False}
    assert sources.published(found.params) == settings
    check_scores(path, np.random.default_rng(1).normal(size=(2, 6, 3)))
    tensors = cost_budget()
    del tensors["mlp_log_cost.2.bias"]
    with pytest.raises(
        import_torch.TorchFileError, match=r"holds no cost-threshold model: 'mlp_log_cost.2.bias' is mis"
    ):
        import_torch.load(save_arrays(tmp_path / "b.pt", tensors))
    with pytest.raises(import_torch.TorchFileError, match=r"holds no cost-threshold model: it has no place for 'more'"):
        import_torch.load(save_arrays(tmp_path / "b.pt", cost_budget() | {"more": np.zeros(1, np.float32)}))


@pytest.mark.skipif(not AUTHORS, reason="the authors' estimators are not beside the repository")
@pytest.mark.parametrize("name", ["SafetyBallRun-v0", "SafetyAntVelocity-v1"])
def test_the_authors_files_of_the_baseline(name):
    with np.load(SHARED / f"goldens/released_estimators/{name}.npz") as file:
        check_scores(SHARED / f"estimators/{name}_CostBudgetMLP_128.pt", file["inputs"])


# --- RLSF: novelty -------------------------------------------------------------------------------------------------


def test_novelty_by_hand():
    """Two bits, the signs of two numbers. Labelled are (1, 1) and (3, -1): mean (2, 0), variance (1, 1)."""
    seen = novelty.init(jax.random.key(0), bits=2, size=2)
    seen = dataclasses.replace(seen, projection=jnp.eye(2))
    corners = jnp.asarray([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(novelty.hashes(seen, corners), [0, 1, 2, 3])
    np.testing.assert_array_equal(novelty.share(seen, corners[None], jnp.ones((1, 4), bool)), [1.0])
    # The third state does not exist: the trajectory has ended.
    states, inside = jnp.asarray([[[1.0, 1.0], [3.0, -1.0], [9.0, 9.0]]]), jnp.asarray([[True, True, False]])
    seen = novelty.add(seen, states, inside)
    np.testing.assert_allclose(seen.mean, [2, 0], atol=1e-6)
    np.testing.assert_allclose(seen.variance, [1, 1], rtol=1e-6)
    # Around the new mean they are (-1, 1) and (1, -1).
    np.testing.assert_array_equal(seen.table, [False, True, True, False])
    other = jnp.asarray([[[0.0, 5.0], [9.0, 9.0]], [[0.0, 5.0], [1.0, 1.0]], [[9.0, 9.0], [9.0, 9.0]]])
    inside = jnp.asarray([[True, True], [True, True], [False, False]])
    np.testing.assert_allclose(novelty.share(seen, other, inside), [0.5, 0.0, 0.0])
    seen = novelty.add(seen, jnp.asarray([[[2.0, 4.0]]]), jnp.asarray([[True]]))
    np.testing.assert_allclose(seen.mean, [2, 4 / 3], rtol=1e-5)
    np.testing.assert_allclose(seen.variance, [2 / 3, (2 + (8 / 3) ** 2) / 3], rtol=1e-5)
    # Nothing new leaves everything as it was.
    assert_trees_close(novelty.add(seen, states, jnp.zeros((1, 3), bool)), seen, rtol=0)


def test_far_states_are_cut():
    """A number of a thousand deviations counts as ten: with these directions the sign of the bit depends on it."""
    seen = dataclasses.replace(novelty.init(jax.random.key(0), bits=1, size=2), projection=jnp.asarray([[1.0, -2.0]]))
    np.testing.assert_array_equal(novelty.hashes(seen, jnp.asarray([[1000.0, 6.0], [9.0, 4.0]])), [0, 1])


# --- RLSF: labels and classifier -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("violates", "last"), [(True, 0), (False, 1)])
def test_segment_labels_by_hand(violates, last):
    """Costs 1 and 2 in the first trajectory; 3 in the second, which terminates in its second segment."""
    cost = jnp.asarray([[1.0, 0, 0, 2, 0, 0], [0, 0, 3, 0, 0, 0]])
    found = labels.segments(
        cost, jnp.asarray([6, 4]), jnp.asarray([0, 1]), limit=1.0, ends=np.asarray([3, 6]), early_end_violates=violates
    )
    np.testing.assert_array_equal(found, [[1, 0], [0, last]])


def test_segments_and_the_whole_are_labelled():
    """Segments of five steps. The whole is bad above 3, a segment above 0.5."""
    config = config_of(method={"source": "rlsf"}, rlsf={"segment_limit": 0.5}, labels={"interval": 5})
    source = sources.RLSF(TASK)
    length = jnp.asarray([10, 10, 10, 4])
    cost = jnp.zeros((4, 10)).at[1, 7].set(1.0).at[2, :4].set(1.0)
    said = source.label(config, cost, length, jnp.asarray([0, 0, 0, 1]))
    np.testing.assert_array_equal(said, [[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 1, 0]])
    mask = source.mask(config, length)
    np.testing.assert_array_equal(mask, [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1]])
    # Nothing wrong with the first: one label. Two segments of the next two, one of the last.
    rows = Trajectories(jnp.zeros((4, 10, 2)), length, said, mask)
    assert int(source.asked(config, rows)) == 1 + 2 + 2 + 1
    whole = config_of(method={"source": "rlsf"}, labels={"terminal_only": True})
    np.testing.assert_array_equal(source.label(whole, cost, length, jnp.asarray([0, 0, 0, 1])), [[1], [1], [0], [0]])
    assert int(source.asked(whole, rows_of(source, whole, length, np.ones((4, 1))))) == 4


def test_prefixes_are_labelled_as_for_other_sources():
    settings = {"labels": {"interval": 5}, "rlsf": {"labels": "prefixes"}}
    length, terminated = jnp.asarray([10, 10, 10, 4]), jnp.asarray([0, 0, 0, 1])
    cost = jnp.zeros((4, 10)).at[1, 7].set(9.0).at[2, :4].set(1.0)
    found = []
    for name, kind in (("rlsf", sources.RLSF), ("ct", sources.CT)):
        config, source = config_of(method={"source": name}, **settings), kind(TASK)
        found.append((source.label(config, cost, length, terminated), source.mask(config, length)))
    np.testing.assert_array_equal(found[0][0], [[1, 1], [1, 0], [0, 0], [1, 0]])
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_every_state_has_the_label_of_its_segment():
    """A classifier that says "bad" with probability 3/4 of all states."""
    config = config_of(method={"source": "rlsf"}, labels={"interval": 5})
    source = sources.RLSF(TASK)
    params = constant(source.fresh(config, jax.random.key(0)).params, math.log(3.0))
    # Five good states, five bad ones; four bad ones; the label of the whole is not learned from.
    rows = rows_of(source, config, [10, 4], [[1, 0, 1], [0, 1, 1]])
    model = source.model(config, NO_STATISTICS)
    expected = -(5 * math.log(0.25) + 9 * math.log(0.75)) / 14
    assert float(model.loss(params, rows, jax.random.key(0))) == pytest.approx(expected, rel=1e-5)
    cost, log_probability = model.judge(params, rows)
    np.testing.assert_array_equal(cost, np.ones((10, 2)))
    parts, whole = log_probability[:, :-1], log_probability[:, -1]
    np.testing.assert_allclose(parts[np.asarray(rows.mask)[:, :-1]], np.full(3, math.log(0.25)), rtol=1e-5)
    # Ten steps, 7.5 of them bad, with a variance of 1.875; four with 3 and 0.75. Up to 25 may be.
    assert np.all(whole > math.log(0.999))
    few = config_of(method={"source": "rlsf"}, labels={"interval": 5}, rlsf={"alpha": 3.0})
    _, log_probability = source.model(few, NO_STATISTICS).judge(params, rows)
    distance = np.asarray([(3.5 - 7.5) / math.sqrt(1.885), (3.5 - 3.0) / math.sqrt(0.76)])
    expected = [0.5 * math.erfc(-value / math.sqrt(2.0)) for value in distance]
    np.testing.assert_allclose(np.exp(log_probability[:, -1]), expected, rtol=1e-3)
    strict = config_of(method={"source": "rlsf"}, rlsf={"bad_above": 0.8})
    assert not source.cost(strict, params, rows.inputs).any()


def test_a_state_has_the_label_of_the_first_prefix_that_it_is_in():
    """Prefixes of five and ten steps; the second episode has seven, the third four, which are the whole of it."""
    config = config_of(method={"source": "rlsf"}, labels={"interval": 5}, rlsf={"labels": "prefixes"})
    source = sources.RLSF(TASK)
    params = constant(source.fresh(config, jax.random.key(0)).params, math.log(3.0))
    rows = rows_of(source, config, [10, 7, 4], [[1, 0], [1, 0], [1, 0]])
    good, bad = 5 + 5, 5 + 2 + 4
    expected = -(good * math.log(0.25) + bad * math.log(0.75)) / 21
    found = source.model(config, NO_STATISTICS).loss(params, rows, jax.random.key(0))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_segment_is_judged_by_the_mean_of_its_states():
    """The logit is minus ten times the observation: 1 is good and -1 is bad, whatever the action."""
    config = config_of(method={"source": "rlsf"}, labels={"interval": 5}, rlsf={"hidden": (2,), "alpha": 2.0})
    source = sources.RLSF(TASK)
    params = {
        "params": {
            "Dense_0": {"kernel": jnp.asarray([[1.0, -1.0], [9.0, 9.0]]), "bias": jnp.zeros(2)},
            "Dense_1": {"kernel": jnp.asarray([[-10.0], [10.0]]), "bias": jnp.zeros(1)},
        }
    }
    states = jnp.asarray([[1, -1, 1, 1, 1, -1, -1, -1, -1, -1], [-1, 1, 1, 0, 0, 0, 0, 0, 0, 0]], jnp.float32)
    rows = rows_of(source, config, [10, 3], np.ones((2, 3)))
    rows = dataclasses.replace(rows, inputs=rows.inputs.at[..., 0].set(states))
    cost, log_probability = source.model(config, NO_STATISTICS).judge(params, rows)
    np.testing.assert_array_equal(cost[:, 0], states[0] < 0)
    # Six bad steps in the first episode, one in the second; two may be.
    np.testing.assert_allclose(np.exp(log_probability[0]), [0.8, 0.0, 0.0], atol=1e-3)
    np.testing.assert_allclose(np.exp(log_probability[1, [0, 2]]), [2 / 3, 1.0], atol=1e-3)
    said = source.scores(config, params, source.prepare(config, NO_STATISTICS, jnp.swapaxes(rows.inputs, 0, 1)))
    np.testing.assert_allclose(np.exp(said["log_probability"][:, 0]), [1] * 6 + [0] * 4, atol=1e-3)


def test_the_discounted_alpha():
    """The original's targets for 500 and for 1000 steps; ours is the plain sum that they stand for."""
    assert round(float(discounted(1.0, 0.99, 500)), 4) == 0.1987
    assert round(float(discounted(1.0, 0.99, 1000)), 4) == 0.1000
    config = config_of(method={"source": "rlsf"}, rlsf={"alpha": 0.5})
    source = sources.RLSF(TASK)
    assert source.sums(config) and float(source.budget(config, None)) == 0.5


# --- From outside --------------------------------------------------------------------------------------------------


def test_the_example_is_as_short_as_it_says():
    """Trained by `test_probes.test_the_guilty_steps_are_found`."""
    assert len((ROOT / "examples/noisy_or.py").read_text().strip().splitlines()) <= 60


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("examples.crpo:CRPO", "CRPO must be a class derived from traces_jax.sources.Source."),
        ("examples.nothing:Own", "there is no module 'examples.nothing'; start from the folder that has it."),
        (
            "traces_jax.sources:Stepwise",
            "Stepwise must define budget, cost, log_probability, loss, module, normalizes.",
        ),
    ],
)
def test_sources_that_are_not_right(name, says):
    with pytest.raises(sources.SourceError) as caught:
        sources.make(config_of(method={"source": name}), TASK)
    assert str(caught.value).startswith(f"method.source '{name}' ") and says in str(caught.value)
    assert str(caught.value).count(". ") == 0


# --- Both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["ct", "rlsf"])
def test_seeds_side_by_side_are_seeds_alone(source):
    changes = {"method": {"source": source}, "rlsf": {"reads_action": True, "alpha": 1.0}, "steps": 240}
    _, together, rows = train(probe(seeds=2, **changes))
    assert np.all(rows["finite"] == 1) and rows["labels/trajectories"][0, -1] > 0
    _, alone, own = train(probe(seed=1, **changes))
    for name, values in own.items():
        if not name.startswith("stage/"):
            np.testing.assert_allclose(rows[name][1], values[0], rtol=2e-4, atol=2e-4, err_msg=name)
    second, first = (jax.tree.map(lambda leaf, i=i: leaf[i], s) for s, i in ((together, 1), (alone, 0)))
    assert_trees_close(second.source.fitted, first.source.fitted, rtol=1e-3, atol=1e-3)
    assert_trees_close(second.source.notes, first.source.notes, rtol=1e-5)


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("ct", {}),
        ("rlsf", {"labels": {"interval": 5}, "rlsf": {"reads_action": True, "segment_limit": 1.5, "alpha": 3.0}}),
    ],
)
def test_pretrained_models_are_saved_scored_and_refused(source, changes, tmp_path):
    """Episodes whose steps cost their actions. What is fitted comes back from its folder, and fits no other source."""
    config = config_of(
        method={"source": source}, pretrain={"steps": 300, "every": 100, "batch": 32, "lr": 1e-2, "weight_decay": 0.0},
        **changes,
    )  # fmt: skip
    host.pretrain(config, write(tmp_path / "a.hdf5", record(episodes=200)), tmp_path / "out")
    said = json.loads((tmp_path / "out/estimator.json").read_text(), parse_constant=pytest.fail)
    assert said["kind"] == source
    assert said["held_out"]["prefixes"]["accuracy"] > 0.85 > said["held_out"]["prefixes"]["accepted"]
    judge = score.load(tmp_path / "out", None)
    high, low = np.zeros((2, 1, 10, 2), np.float32) + np.asarray([5.0, 0.0], np.float32)
    high[..., 1] = 0.9
    steep, flat = (judge.scores(jnp.asarray(inputs)) for inputs in (high, low))
    assert steep["mean"].sum() > flat["mean"].sum()
    assert steep["log_probability"][0, -1] < math.log(0.5) < flat["log_probability"][0, -1]
    start = {"estimator": {"init": str(tmp_path / "out")}}
    loaded = prior.load(config_of(method={"source": source}, **changes, **start), TASK, print)
    assert loaded is not None and loaded.rows.count == 16
    state = sources.learned(config, TASK).init(config, jax.random.key(0), loaded, None)
    assert int(state.store.written) == 16
    if source == "rlsf":
        assert float(state.notes.count) == np.sum(loaded.rows.length), "what was labelled before is not novel"
    with pytest.raises(errors.UserError, match=f"was fitted with method.source={source}, not traces; choose the same"):
        prior.load(config_of(**start), TASK, print)
