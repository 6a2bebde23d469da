"""The estimator: PyTorch's numbers (goldens/estimator_*.npz), credits against their definitions, and the edges."""

import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from helpers import first_carry
from hypothesis import given, settings
from hypothesis import strategies as st

from traces_jax.estimator import credit, network
from traces_jax.host.data import import_torch

GOLDENS = pathlib.Path(__file__).parent / "goldens"
CLAMP = -7.0
MU_LOW, MU_HIGH = network.MU_RANGE
SIGMA_LOW, SIGMA_HIGH = (math.exp(bound) for bound in network.LOG_SIGMA_RANGE)
# All corners of what the network can say, and the neighbourhood of the clamp.
MU, SIGMA = (
    jnp.asarray(grid.reshape(-1), jnp.float32)
    for grid in np.meshgrid(
        [*np.linspace(MU_LOW, MU_HIGH, 24), 1.9, math.log(7), 2.0], np.geomspace(SIGMA_LOW, SIGMA_HIGH, 23)
    )
)


def close(found, expected, tolerance, *, scale=None):
    """Relative to each entry, or to `scale`."""
    bound = tolerance * (np.abs(expected) if scale is None else scale)
    error = np.abs(np.asarray(found, np.float64) - expected)
    assert np.all(error <= bound), f"{np.max(error / np.where(bound > 0, bound, 1e-300)) * tolerance:.1e}"


@functools.cache
def fresh(seed=0, **changes):
    sizes = {"features": 5, "hidden": 4, "layers": 2, "decoder": (16, 8), "initial_mean": -3.0, "mean_spread": 0.6}
    sizes = {**sizes, "reads_step": False, **changes}
    return jax.jit(functools.partial(network.init, **sizes))(jax.random.key(seed))


def test_units_that_remember_for_longer_and_longer():
    """Without weights, a state that was larger by 1 is larger by 1 - 1 / span after a step; spans 2, 8, 32, 128."""
    estimator = network.with_memory(fresh(), 128)
    plain = estimator.layers[0]
    top = estimator.layers[1].replace(input_kernel=jnp.zeros((4, 12)), hidden_kernel=jnp.zeros((4, 12)))
    estimator = estimator.replace(layers=(plain, top))
    carry = jnp.zeros((2, 1, 4))
    after = [network.advance(estimator, carry.at[1].set(state), jnp.zeros((1, 5)))[1, 0] for state in (0.0, 1.0)]
    np.testing.assert_allclose(after[1] - after[0], [1 / 2, 7 / 8, 31 / 32, 127 / 128], rtol=1e-5)
    # Nothing else is touched.
    np.testing.assert_array_equal(plain.input_bias, fresh().layers[0].input_bias)
    np.testing.assert_array_equal(top.input_bias[8:], fresh().layers[1].input_bias[8:])


def random_inputs(steps=7, batch=3, features=5, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(steps, batch, features)), jnp.float32)


# Compiled as a whole: operation by operation, compiling takes most of the tests' time.
apply, encode, advance, decode, dead_share = (
    jax.jit(function)
    for function in (network.apply, network.encode, network.advance, network.decode, network.dead_share)
)
clamped_mean, clamped_variance, lognormal_mean, lognormal_variance, coefficient_of_variation, sample, log1mexp = (
    jax.jit(function)
    for function in (
        credit.clamped_mean,
        credit.clamped_variance,
        credit.lognormal_mean,
        credit.lognormal_variance,
        credit.coefficient_of_variation,
        credit.sample,
        credit.log1mexp,
    )
)


# PyTorch's numbers.


@functools.cache
def golden(name):
    with np.load(GOLDENS / f"estimator_{name}.npz") as file:
        arrays = dict(file)
    part = lambda kind: {key.removeprefix(kind): value for key, value in arrays.items() if key.startswith(kind)}  # noqa: E731
    weights, gradients = (
        import_torch.from_state_dict(part(kind), source="the golden") for kind in ("weight/", "grad/")
    )
    return arrays, weights, gradients


def time_major(array):
    return jnp.asarray(np.swapaxes(array, 0, 1), jnp.float32)


def golden_loss(estimator, arrays):
    """The loss from labels at the golden's prefixes, as a mask over all steps."""
    _, mu, sigma = apply(estimator, time_major(arrays["inputs"]))
    log_credit = sample(mu, sigma, time_major(arrays["noise"]), clamp=CLAMP)
    log_probability = credit.prefix_log_probability(log_credit)
    at = arrays["prefix_lengths"] - 1
    label = jnp.zeros_like(log_probability).at[at].set(time_major(arrays["labels"]))
    mask = jnp.zeros_like(log_probability).at[at].set(1.0)
    return credit.cross_entropy(log_probability, label, mask), (log_credit, log_probability[at])


@pytest.mark.parametrize("name", ["small", "long"])
def test_outputs_are_those_of_pytorch(name):
    arrays, estimator, _ = golden(name)
    hidden, mu, sigma = apply(estimator, time_major(arrays["inputs"]))
    # Summaries cross zero; they are of order one.
    close(hidden, time_major(arrays["hidden"]), 1e-4, scale=np.abs(arrays["hidden"]).max())
    close(mu, time_major(arrays["mu"]), 1e-4)
    close(sigma, time_major(arrays["sigma"]), 1e-4)
    # The golden's moments are those without a clamp.
    mean, variance = lognormal_mean(mu, sigma), lognormal_variance(mu, sigma)
    close(mean, time_major(arrays["credit_mean"]), 1e-4)
    close(variance, time_major(arrays["credit_variance"]), 1e-4)
    close(coefficient_of_variation(mean, variance, jnp.ones_like(mean)), arrays["cv"], 1e-4)


@pytest.mark.parametrize("name", ["small", "long"])
def test_loss_and_gradients_are_those_of_pytorch(name):
    arrays, estimator, gradients = golden(name)
    (loss, (log_credit, log_probability)), found = jax.jit(
        jax.value_and_grad(functools.partial(golden_loss, arrays=arrays), has_aux=True)
    )(estimator)
    close(log_credit, time_major(arrays["sampled_log_credit"]), 1e-4)
    close(log_probability, time_major(arrays["prefix_log_probability"]), 1e-4)
    close(loss, arrays["loss"], 1e-4)
    # Single entries are sums that nearly cancel; each array is measured by its largest entry.
    jax.tree.map(lambda a, b: close(a, b, 1e-4, scale=np.abs(b).max()), found, gradients)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


# The network.


def test_advance_repeated_is_encode():
    estimator, inputs = fresh(), random_inputs()
    carries = [first_carry(estimator, (3,))]
    for now in inputs:
        carries.append(advance(estimator, carries[-1], now))
    hidden = jnp.stack(carries)[:, -1]
    before, after = encode(estimator, inputs)
    np.testing.assert_allclose(before, hidden[:-1], atol=1e-6)
    np.testing.assert_allclose(after, hidden[1:], atol=1e-6)


@pytest.mark.parametrize("first", [False, True])
def test_the_first_step_begins_an_episode_marked_or_not(first):
    estimator, inputs = fresh(), random_inputs()
    began = jnp.zeros(inputs.shape[:2], bool).at[0].set(first)
    for marked, unmarked in zip(encode(estimator, inputs, began), encode(estimator, inputs), strict=True):
        np.testing.assert_allclose(marked, unmarked, atol=1e-6)


def test_episodes_in_a_rollout_do_not_see_each_other():
    """Three environments, whose episodes end at different times, against every episode on its own."""
    estimator, inputs = fresh(), random_inputs(6)
    began = np.zeros((6, 3), bool)
    began[0], began[2, 1], began[[1, 4], 2] = True, True, True
    before, after = encode(estimator, inputs, jnp.asarray(began))
    for environment in range(3):
        for step in range(6):
            if began[step, environment]:
                carry = first_carry(estimator, ())
            np.testing.assert_allclose(before[step, environment], carry[-1], atol=1e-6)
            carry = advance(estimator, carry, inputs[step, environment])
            np.testing.assert_allclose(after[step, environment], carry[-1], atol=1e-6)


def test_advance_takes_any_batch():
    estimator = fresh()
    inputs = random_inputs(2, 3)
    carry = advance(estimator, first_carry(estimator, (2, 3)), inputs)
    assert carry.shape == (2, 2, 3, 4)
    single = advance(estimator, first_carry(estimator, ()), inputs[1, 2])
    np.testing.assert_allclose(carry[:, 1, 2], single, atol=1e-6)


def test_lanes_do_not_mix():
    """Under vmap every lane's outputs and gradients are those it has alone."""

    def loss(estimator, inputs):
        _, mu, sigma = apply(estimator, inputs)
        return jnp.sum(mu * sigma)

    lanes = [fresh(seed) for seed in (0, 1)]
    inputs = [random_inputs(seed=seed) for seed in (2, 3)]
    together = jax.jit(jax.vmap(jax.grad(loss)))(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes), jnp.stack(inputs)
    )
    slope = jax.jit(jax.grad(loss))
    for index, (estimator, lane_inputs) in enumerate(zip(lanes, inputs, strict=True)):
        alone = slope(estimator, lane_inputs)
        jax.tree.map(
            lambda a, b, index=index: np.testing.assert_allclose(a[index], b, rtol=1e-4, atol=1e-6), together, alone
        )


@pytest.mark.parametrize("reads_step", [False, True])
def test_before_is_one_step_late(reads_step):
    """The first step's credit depends on the first input alone, the second's on two."""
    estimator, inputs = fresh(reads_step=reads_step), random_inputs()
    changed = inputs.at[1:].add(1.0)
    _, mu, _ = apply(estimator, inputs)
    _, other, _ = apply(estimator, changed)
    np.testing.assert_array_equal(mu[0], other[0])
    assert np.all(mu[1:] != other[1:])
    _, hidden = encode(estimator, inputs)
    first, _ = decode(estimator, jnp.zeros((3, 4)), hidden[0], inputs[0])
    np.testing.assert_allclose(mu[0], first, rtol=1e-6)
    second, _ = decode(estimator, hidden[0], hidden[1], inputs[1])
    np.testing.assert_allclose(mu[1], second, rtol=1e-6)


def test_a_decoder_may_read_the_step_itself():
    """With summaries that know nothing, only one that reads the step can tell steps apart."""
    nothing, inputs = jnp.zeros((3, 4)), random_inputs()[0]
    blind, _ = decode(fresh(), nothing, nothing, inputs)
    seeing, _ = decode(fresh(reads_step=True), nothing, nothing, inputs)
    assert len(set(np.asarray(blind).tolist())) == 1 and len(set(np.asarray(seeing).tolist())) == 3


def with_heads(estimator, mu, log_sigma):
    """The estimator with these outputs for all inputs."""
    head = lambda dense, value: network.Dense(kernel=0 * dense.kernel, bias=jnp.full((1,), value))  # noqa: E731
    return estimator.replace(
        mean_head=head(estimator.mean_head, mu), log_std_head=head(estimator.log_std_head, log_sigma)
    )


@pytest.mark.parametrize(("head", "mu", "log_sigma"), [(1.5, 1.5, 1.5), (-50.0, -20.0, -20.0), (50.0, 3.0, 2.0)])
def test_outputs_are_bounded(head, mu, log_sigma):
    found_mu, found_sigma = decode(with_heads(fresh(), head, head), jnp.zeros((4,)), jnp.ones((4,)), jnp.ones((5,)))
    assert found_mu == mu
    np.testing.assert_allclose(found_sigma, np.exp(log_sigma), rtol=1e-6)


def test_dead_share_counts_units_that_no_row_switches_on():
    estimator = fresh(decoder=(4, 4))
    dense = lambda bias: network.Dense(kernel=jnp.zeros((4, 4)), bias=jnp.asarray(bias))  # noqa: E731
    # The first unit of the first layer listens to the first input, the second never speaks; one of the others is off.
    first = network.Dense(kernel=jnp.zeros((8, 4)).at[0, 0].set(1.0), bias=jnp.asarray([0.0, -1.0, 1.0, 1.0]))
    estimator = estimator.replace(decoder=(first, dense([1.0, 1.0, 1.0, -1.0])))
    rows = jnp.zeros((2, 3, 4))
    inputs = jnp.zeros((2, 3, 5))
    assert dead_share(estimator, rows, rows, inputs) == 3 / 8
    assert dead_share(estimator, rows.at[1, 2, 0].set(0.5), rows, inputs) == 2 / 8


def test_initialisation_is_pytorchs_but_for_the_mean_head():
    estimator = fresh(hidden=16, layers=3, features=100, decoder=(64, 2500), initial_mean=-4.5)

    def check(leaf, bound, shape):
        assert leaf.shape == shape and leaf.dtype == jnp.float32
        assert 0.8 * bound < np.abs(leaf).max() <= bound

    for layer, inputs in zip(estimator.layers, (100, 16, 16), strict=True):
        check(layer.input_kernel, 1 / 4, (inputs, 48))
        check(layer.hidden_kernel, 1 / 4, (16, 48))
        check(layer.input_bias, 1 / 4, (48,))
        check(layer.hidden_bias, 1 / 4, (48,))
    for layer, inputs, outputs in zip(estimator.decoder, (32, 64), (64, 2500), strict=True):
        check(layer.kernel, inputs**-0.5, (inputs, outputs))
        check(layer.bias, inputs**-0.5, (outputs,))
    check(estimator.log_std_head.kernel, 1 / 50, (2500, 1))
    assert estimator.log_std_head.bias.shape == (1,)
    np.testing.assert_array_equal(estimator.mean_head.bias, [-4.5])
    kernel = np.asarray(estimator.mean_head.kernel)
    assert kernel.shape == (2500, 1) and abs(kernel.mean()) < 0.05 and kernel.std() == pytest.approx(0.6, rel=0.05)
    leaves = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(estimator)]
    assert len({float(leaf[0]) for leaf in leaves}) == len(leaves), "two arrays were drawn with one key"


def test_a_fresh_estimator_accepts():
    horizon = 1000
    mean = network.initial_mean(horizon)
    assert math.exp(-horizon * math.exp(mean)) == pytest.approx(0.95)
    assert network.initial_mean(horizon, 0.5) == pytest.approx(math.log(math.log(2) / horizon))
    estimator = fresh(initial_mean=mean, decoder=(64, 64))
    inputs = random_inputs(horizon, 4)
    _, mu, sigma = apply(estimator, inputs)
    assert np.all(np.exp(-np.sum(clamped_mean(mu, sigma, clamp=CLAMP), axis=0)) > 0.8)
    assert dead_share(estimator, *encode(estimator, inputs), inputs) < 0.7


@pytest.mark.parametrize(
    "call",
    [
        lambda e: encode(e, jnp.zeros((7, 3, 6))),
        lambda e: encode(e, jnp.zeros((7, 5))),
        lambda e: encode(e, jnp.zeros((7, 3, 5)), jnp.zeros((7, 1), bool)),
        lambda e: encode(e, jnp.zeros((7, 3, 5)), jnp.zeros((7, 3, 1), bool)),
        lambda e: advance(e, first_carry(e, (1,)), jnp.zeros((3, 5))),
        lambda e: advance(e, first_carry(e, (3,))[:1], jnp.zeros((3, 5))),
        lambda e: decode(e, jnp.zeros((1, 4)), jnp.zeros((3, 4)), jnp.zeros((3, 5))),
        lambda e: decode(e, jnp.zeros((3, 3)), jnp.zeros((3, 3)), jnp.zeros((3, 5))),
        lambda e: decode(e, jnp.zeros((3, 4)), jnp.zeros((3, 4)), jnp.zeros((3, 6))),
        lambda e: decode(e, jnp.zeros((3, 4)), jnp.zeros((3, 4)), jnp.zeros((1, 5))),
    ],
)
def test_shapes_that_do_not_match_are_refused(call):
    with pytest.raises(AssertionError):
        call(fresh())


# Samples.


def test_samples_by_hand():
    log = lambda *numbers: jnp.log(jnp.asarray(numbers))  # noqa: E731
    found = sample(log(2.0, 2.0, 2.0), log(2.0, 2.0, 2.0), jnp.asarray([0.0, -1.0, 3.0]), clamp=CLAMP)
    np.testing.assert_allclose(found, [-2.0, -1.0, -7.0], rtol=1e-6)
    # e^(3 + 40 e^2) is out of range; what was clamped teaches nothing.
    value, slope = jax.value_and_grad(sample, (0, 1))(MU_HIGH, SIGMA_HIGH, 40.0, clamp=CLAMP)
    assert value == -7.0 and slope == (0.0, 0.0)


@given(st.lists(st.tuples(st.floats(MU_LOW, MU_HIGH), st.floats(-20, 2), st.floats(-40, 40)), min_size=8, max_size=8))
@settings(max_examples=50, deadline=None)
def test_samples_lie_between_the_clamp_and_zero(rows):
    mu, log_sigma, noise = (jnp.asarray(column, jnp.float32) for column in zip(*rows, strict=True))
    value, slope = jax.vmap(
        jax.value_and_grad(lambda mu, log_sigma, noise: sample(mu, jnp.exp(log_sigma), noise, clamp=CLAMP), (0, 1))
    )(mu, log_sigma, noise)
    assert np.all((value >= CLAMP) & (value <= 0))
    assert np.all(np.isfinite(slope))
    log_probability = credit.prefix_log_probability(value)
    assert np.all(np.diff(np.exp(log_probability)) <= 0), "a longer prefix cannot be likelier"
    np.testing.assert_allclose(log_probability, np.cumsum(np.asarray(value, float)), rtol=1e-5, atol=1e-30)


# Moments.


def closed_form(mu, sigma, cap):
    """Mean and variance of min(U, cap) in float64, as textbooks have them."""
    reach = (np.log(cap) - mu) / sigma
    mean = np.exp(mu + sigma**2 / 2) * scipy.special.ndtr(reach - sigma) + cap * scipy.special.ndtr(-reach)
    square = np.exp(2 * mu + 2 * sigma**2) * scipy.special.ndtr(reach - 2 * sigma) + cap**2 * scipy.special.ndtr(-reach)
    return mean, square - mean**2


def test_clamped_moments_are_those_of_the_table():
    with np.load(GOLDENS / "clamped_lognormal.npz") as file:
        assert list(file["columns"]) == ["mu", "sigma", "clamp", "mean", "variance"]
        mu, sigma, cap, mean, variance = file["rows"].T
    numbers = [jnp.asarray(column, jnp.float32) for column in (mu, sigma)]
    close(clamped_mean(*numbers, clamp=-jnp.asarray(cap, jnp.float32)), mean, 1e-5)
    close(clamped_variance(*numbers, clamp=-jnp.asarray(cap, jnp.float32)), variance, 1e-5)


def test_clamped_moments_are_those_of_the_closed_form():
    # Where sigma is small the closed form is no measure, not even in float64.
    mu, sigma = (np.asarray(x, np.float64) for x in (MU[SIGMA > 0.01], SIGMA[SIGMA > 0.01]))
    mean, variance = closed_form(mu, sigma, 7.0)
    numbers = (jnp.asarray(mu, jnp.float32), jnp.asarray(sigma, jnp.float32))
    assert mu.size > 100
    close(clamped_mean(*numbers, clamp=CLAMP), mean, 1e-5)
    sure = variance > 1e-10 * mean**2
    close(clamped_variance(*numbers, clamp=CLAMP)[sure], variance[sure], 2e-5)


@pytest.mark.parametrize("mu", [-20.0, -5.0, 1.9])
@pytest.mark.parametrize("sigma", [SIGMA_LOW, 1e-6, 1e-3])
def test_small_sigma(mu, sigma):
    """U is then nearly normal around e^mu with deviation sigma e^mu; the textbook form has no correct digit here."""
    numbers = jnp.float32(mu), jnp.float32(sigma)
    close(clamped_mean(*numbers, clamp=CLAMP), math.exp(mu), 1e-5)
    close(clamped_variance(*numbers, clamp=CLAMP), (sigma * math.exp(mu)) ** 2, 2e-5)


def test_beyond_the_clamp_nothing_is_left_to_chance():
    numbers = jnp.full((3,), 3.0), jnp.asarray([SIGMA_LOW, 1e-4, 0.05])
    np.testing.assert_array_equal(clamped_mean(*numbers, clamp=CLAMP), [7.0, 7.0, 7.0])
    np.testing.assert_array_equal(clamped_variance(*numbers, clamp=CLAMP), [0.0, 0.0, 0.0])


def test_moments_of_many_samples():
    noise = jnp.asarray(np.random.default_rng(0).normal(size=200_000), jnp.float32)
    mu, sigma = jnp.full_like(noise, 1.0), jnp.full_like(noise, 1.5)
    samples = -np.asarray(sample(mu, sigma, noise, clamp=CLAMP), np.float64)
    np.testing.assert_allclose(clamped_mean(mu[0], sigma[0], clamp=CLAMP), samples.mean(), rtol=0.01)
    np.testing.assert_allclose(clamped_variance(mu[0], sigma[0], clamp=CLAMP), samples.var(), rtol=0.01)


@pytest.mark.parametrize(
    "moment",
    [
        functools.partial(clamped_mean, clamp=CLAMP),
        functools.partial(clamped_variance, clamp=CLAMP),
        lognormal_mean,
        lognormal_variance,
    ],
)
def test_moments_and_their_slopes_are_finite_everywhere(moment):
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(moment, (0, 1))))(MU, SIGMA)
    assert np.all(np.isfinite(value)) and np.all(value >= 0)
    assert np.all(np.isfinite(slope))


def test_clamped_moments_stay_below_the_clamp():
    mean, variance = (moment(MU, SIGMA, clamp=CLAMP) for moment in (clamped_mean, clamped_variance))
    assert np.all(mean <= 7.0 * (1 + 1e-5))
    # No variable between 0 and 7 with this mean varies more (Bhatia and Davis).
    assert np.all(variance <= mean * (7.0 - mean) + 1e-4)


@pytest.mark.parametrize(("mu", "sigma"), [(0.0, 0.5), (1.9, 0.1), (2.5, 0.3), (-2.0, 2.5), (3.0, 7.0), (-6.0, 3.0)])
def test_slopes_of_the_clamped_moments(mu, sigma):
    moments = (clamped_mean, clamped_variance)
    for index, moment in enumerate(moments):
        found = jax.grad(functools.partial(moment, clamp=CLAMP), (0, 1))(jnp.float32(mu), jnp.float32(sigma))
        step = 1e-4
        differences = [
            (closed_form(mu + dm, sigma + ds, 7.0)[index] - closed_form(mu - dm, sigma - ds, 7.0)[index]) / (2 * step)
            for dm, ds in ((step, 0.0), (0.0, step))
        ]
        np.testing.assert_allclose(found, differences, rtol=1e-4, atol=1e-6)


def test_lognormal_variance_is_held_where_it_would_overflow():
    held = lognormal_variance(jnp.float32(MU_HIGH), jnp.float32(SIGMA_HIGH))
    np.testing.assert_allclose(held, math.exp(80), rtol=1e-4)
    assert np.isfinite(1000 * held)
    found = lognormal_variance(jnp.float32(1.0), jnp.float32(4.0))
    np.testing.assert_allclose(found, (math.exp(16) - 1) * math.exp(18), rtol=1e-5)


# Likelihood.


def test_log1mexp():
    x = -np.concatenate([np.geomspace(1e-29, 1.0, 60), np.geomspace(0.5, 1000.0, 40), [math.log(2)]]).astype(np.float32)
    double = x.astype(float)
    exact = np.log(-np.expm1(double))
    exact[x < -1] = np.log1p(-np.exp(double[x < -1]))
    close(log1mexp(jnp.asarray(x)), exact, 1e-6, scale=np.maximum(np.abs(exact), 1e-30))
    slope = jax.jit(jax.vmap(jax.grad(log1mexp)))(jnp.asarray(x))
    np.testing.assert_allclose(slope, -1 / np.expm1(np.minimum(-double, 600)), rtol=1e-5, atol=1e-37)


def test_log1mexp_of_zero_is_finite():
    value, slope = jax.value_and_grad(log1mexp)(jnp.float32(0.0))
    np.testing.assert_allclose(value, math.log(1e-30), rtol=1e-6)
    assert np.isfinite(slope)


def test_cross_entropy_by_hand():
    log_probability = jnp.log(jnp.asarray([[0.5, 0.25], [0.2, 0.9]]))
    label = jnp.asarray([[1, 0], [0, 1]])
    mask = jnp.asarray([[1, 1], [1, 0]])
    expected = -(math.log(0.5) + math.log(0.75) + math.log(0.8)) / 3
    np.testing.assert_allclose(credit.cross_entropy(log_probability, label, mask), expected, rtol=1e-6)


def test_what_is_outside_the_mask_does_not_matter():
    label, mask = jnp.asarray([1.0, 0.0, 1.0]), jnp.asarray([1.0, 0.0, 0.0])
    loss, slope = jax.jit(jax.value_and_grad(credit.cross_entropy))(jnp.asarray([-0.5, jnp.nan, -jnp.inf]), label, mask)
    assert loss == 0.5
    np.testing.assert_array_equal(slope, [-1.0, 0.0, 0.0])
    loss, slope = jax.jit(jax.value_and_grad(credit.cross_entropy))(jnp.asarray([-0.5, -1.0, -2.0]), label, 0 * mask)
    assert loss == 0 and not np.any(slope)


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize(("mu", "sigma"), [(MU_LOW, SIGMA_LOW), (MU_LOW, SIGMA_HIGH), (MU_HIGH, SIGMA_HIGH)])
def test_slopes_are_finite_where_the_estimator_is_certain(mu, sigma, label):
    """Prefixes from one step (p next to 1) to a thousand (p = exp(-7000), next to 0)."""
    noise = jnp.asarray(np.random.default_rng(0).normal(size=(1000, 2)), jnp.float32)

    def loss(mu, sigma):
        log_credit = sample(jnp.full_like(noise, mu), jnp.full_like(noise, sigma), noise, clamp=CLAMP)
        log_probability = credit.prefix_log_probability(log_credit)
        return credit.cross_entropy(log_probability, jnp.full_like(noise, label), jnp.ones_like(noise))

    value, slope = jax.jit(jax.value_and_grad(loss, (0, 1)))(mu, sigma)
    assert np.isfinite(value) and np.all(np.isfinite(slope))


# Selection and metrics.


def moments_of(seed, steps=6):
    random = np.random.default_rng(seed)
    mu, sigma = random.uniform(-4, 1, (steps, 3)), random.uniform(0.1, 1.5, (steps, 3))
    return jnp.asarray(mu, jnp.float32), jnp.asarray(sigma, jnp.float32)


def whole(values):
    return jnp.ones_like(values)


@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(0.01, 100.0), times=st.sampled_from([2, 5]))
@settings(max_examples=30, deadline=None)
def test_what_the_coefficient_of_variation_does_not_see(seed, factor, times):
    mu, sigma = moments_of(seed)
    mean, variance = lognormal_mean(mu, sigma), lognormal_variance(mu, sigma)
    cv = coefficient_of_variation(mean, variance, whole(mean))
    # All credits larger by a factor: mu moves by its logarithm.
    scaled = mu + jnp.log(jnp.float32(factor))
    mean_scaled, variance_scaled = lognormal_mean(scaled, sigma), lognormal_variance(scaled, sigma)
    np.testing.assert_allclose(mean_scaled, factor * mean, rtol=1e-4)
    np.testing.assert_allclose(coefficient_of_variation(mean_scaled, variance_scaled, whole(mean)), cv, rtol=1e-4)
    # The order of the steps.
    np.testing.assert_allclose(coefficient_of_variation(mean[::-1], variance[::-1], whole(mean)), cv, rtol=1e-5)
    # It does see the length: the same again n times is more certain by sqrt(n).
    repeated = [jnp.concatenate([values] * times) for values in (mean, variance, whole(mean))]
    np.testing.assert_allclose(coefficient_of_variation(*repeated), cv / math.sqrt(times), rtol=1e-5)


def test_coefficient_of_variation_by_hand():
    mean = jnp.asarray([[1.0, 2.0], [4.0, jnp.nan]])
    variance = jnp.asarray([[9.0, 1.0], [16.0, jnp.nan]])
    found = coefficient_of_variation(mean, variance, jnp.asarray([[1, 1], [1, 0]]))
    np.testing.assert_allclose(found, [5 / 5, 1 / 2], rtol=1e-6)


def test_no_step_or_no_doubt_is_no_variation():
    cv = lambda variance, mask: coefficient_of_variation(jnp.ones((4, 1)), variance, mask)[0]  # noqa: E731
    assert cv(jnp.ones((4, 1)), jnp.zeros((4, 1))) == 0
    value, slope = jax.value_and_grad(cv)(jnp.zeros((4, 1)), jnp.ones((4, 1)))
    assert value == 0 and np.all(np.isfinite(slope))


def test_scores_by_hand():
    probability = jnp.asarray([0.9, 0.5, 0.6, 0.1, 0.4, 0.2, 0.9])
    label = jnp.asarray([1, 1, 0, 0, 1, 0, 0])
    mask = jnp.asarray([1, 1, 1, 1, 1, 1, 0])
    found = credit.scores(jnp.log(probability), label, mask)
    np.testing.assert_allclose([found.accuracy, found.precision, found.recall], [4 / 6, 2 / 3, 2 / 3], rtol=1e-6)
    # One more of either error: precision and recall are not the same thing.
    found = credit.scores(jnp.log(probability), label, jnp.ones_like(mask))
    np.testing.assert_allclose([found.accuracy, found.precision, found.recall], [4 / 7, 2 / 4, 2 / 3], rtol=1e-6)


def test_scores_of_nothing_are_not_a_number():
    log_probability = jnp.log(jnp.asarray([0.1, 0.2]))
    nothing = credit.scores(log_probability, jnp.asarray([1, 0]), jnp.zeros((2,)))
    assert np.isnan([nothing.accuracy, nothing.precision, nothing.recall]).all()
    no_positives = credit.scores(log_probability, jnp.zeros((2,)), jnp.ones((2,)))
    assert no_positives.accuracy == 1 and np.isnan([no_positives.precision, no_positives.recall]).all()


# --- What is reported ----------------------------------------------------------------------------------------------


def test_jensens_gap_by_hand():
    """Probabilities of 0.5 and 0.1: mean 0.3, variance 0.04, bound 0.04 / (2 * 0.01). The third is masked."""
    gap, bound = credit.jensen(jnp.log(jnp.array([0.5, 0.1, 0.9])), jnp.array([True, True, False]))
    np.testing.assert_allclose(gap, np.log(0.3) - (np.log(0.5) + np.log(0.1)) / 2, rtol=1e-5)
    np.testing.assert_allclose(bound, 2.0, rtol=1e-5)


def test_jensens_gap_where_probabilities_vanish():
    """Log E[p] is that of the larger, halved; the bound is out of float32's range."""
    gap, bound = credit.jensen(jnp.array([-1000.0, -2000.0]), jnp.ones(2, bool))
    np.testing.assert_allclose(gap, -1000.0 - np.log(2.0) + 1500.0, rtol=1e-5)
    assert bound == 0.0, "both are zero in float32, and so is their variance"
    _, bound = credit.jensen(jnp.array([-0.1, -2000.0]), jnp.ones(2, bool))
    np.testing.assert_allclose(bound, 1e30)
    gap, bound = credit.jensen(jnp.array([-3.0, -3.0]), jnp.ones(2, bool))
    np.testing.assert_allclose([gap, bound], [0.0, 0.0], atol=1e-6)


def test_the_share_of_clamped_credits():
    """A median at the clamp is clamped half of the time; one deviation below it, 16 %."""
    mu = jnp.log(7.0) - jnp.array([0.0, 0.5])
    np.testing.assert_allclose(credit.clamped_share(mu, jnp.full(2, 0.5), clamp=-7.0), [0.5, 0.1586553], rtol=1e-4)
