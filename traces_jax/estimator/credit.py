"""The mathematics of credits: a step lowers the log-probability by U ~ LogNormal(mu, sigma), clamped to -clamp.

All functions and their gradients are finite for mu in [-20, 3] and sigma in [e^-20, e^2], the range of the network's
outputs. mu, sigma and elementwise functions of them: [...]; sums over time are along axis 0.
"""

import math

import chex
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr, ndtr

# A traced number: an array inside the program, a plain float in tests.
Number = jax.Array | float

# Maximum log-normal standard deviation: squared and summed over some thousand steps it still fits into float32.
_MAX_DEVIATION = math.exp(40.0)
# Lower bound of 1 - p: it keeps the loss finite for a label that the estimator considers impossible.
_SMALLEST_LOG = 1e-30
# Below this, the standard normal CDF is 0 in float32, and log_ndtr's derivative subtracts squares of such values.
_FARTHEST = -14.0

_POINTS, _WEIGHTS = (
    (part / 2).astype(np.float32) for part in np.polynomial.legendre.leggauss(20) + np.array([[1.0], [0.0]])
)
# Integrals over a tail end where the density has fallen by a factor of exp(-_DEPTH).
_DEPTH = 22.0


def tempered(summed: jax.Array, cost: jax.Array) -> jax.Array:
    """The increase of log(1 + C) at each step, where C is the cost summed so far.

    C = -log p for an episode that is acceptable with probability p. log(1 + C) equals the probability of a violation
    1 - p to second order in C. So near the constraint this is the cost of the chance constraint itself. Where p is
    nearly 0, it still has a slope, and a few hopeless episodes do not outweigh all others.
    summed: [...] including this step; cost: [...] of this step.
    """
    chex.assert_equal_shape([summed, cost])
    return jnp.log1p(summed) - jnp.log1p(jnp.maximum(summed - cost, 0.0))


def sample(mu: jax.Array, sigma: jax.Array, noise: jax.Array, *, clamp: Number) -> jax.Array:
    """Log credits -min(U, -clamp) in [clamp, 0], differentiable in mu and sigma. noise: [...] standard normal."""
    chex.assert_equal_shape([mu, sigma, noise])
    # Clamped before the exponential: a sample that overflows would have a NaN gradient.
    exponent = jnp.minimum(mu + sigma * noise, jnp.log(-clamp))
    return jnp.maximum(-jnp.exp(exponent), clamp)


def clamped_mean(mu: jax.Array, sigma: jax.Array, *, clamp: Number) -> jax.Array:
    """E[min(U, -clamp)], in closed form: two positive terms, so no cancellation."""
    chex.assert_equal_shape([mu, sigma])
    reach = jnp.maximum(_reach(mu, sigma, clamp), _FARTHEST)
    return jnp.exp(mu + sigma**2 / 2 + log_ndtr(reach - sigma)) - clamp * ndtr(-reach)


def clamped_variance(mu: jax.Array, sigma: jax.Array, *, clamp: Number) -> jax.Array:
    """Var[min(U, -clamp)], never negative.

    The closed form E[min(U, a)^2] - E[min(U, a)]^2 loses every digit of float32 for small sigma or nearly certain
    clamping. So this integrates relative deviations from the value at the median, by Gauss-Legendre quadrature on
    either side of the median up to the clamp. These deviations are small when the variance is, and the subtraction
    loses at most half of their mean square. Agrees with the closed form in float64 to 1e-6, except for the effect of
    rounding log(-clamp) - mu.
    """
    chex.assert_equal_shape([mu, sigma])
    held_mu, held_sigma = lax.stop_gradient((mu, sigma))
    reach = _reach(mu, sigma, clamp)
    median = jnp.minimum(reach, 0.0)  # of min(U, -clamp), as a standard normal value

    def integrate(width: jax.Array) -> tuple[jax.Array, jax.Array]:
        """First and second moment of the deviations between the median and `width` [...] beyond it."""
        offset = width[..., None] * _POINTS
        normal = median[..., None] + offset
        mass = jnp.abs(width)[..., None] * _WEIGHTS * jnp.exp(-(normal**2) / 2) / math.sqrt(2 * math.pi)
        # Zero, but with the right derivatives: a point's log value is mu + sigma * normal.
        moved = (mu - held_mu)[..., None] + (sigma - held_sigma)[..., None] * normal
        deviation = jnp.expm1(held_sigma[..., None] * offset + moved)
        return jnp.sum(mass * deviation, -1), jnp.sum(mass * deviation**2, -1)

    lower_first, lower_second = integrate(-2 * _DEPTH / (jnp.sqrt(median**2 + 2 * _DEPTH) - median))
    # The second moment's integrand is highest at 2 sigma.
    upper_first, upper_second = integrate(jnp.clip(reach, 0.0, 2 * held_sigma + math.sqrt(2 * _DEPTH)))
    log_cap = jnp.log(-clamp)
    clamped, deviation = ndtr(-reach), jnp.expm1(jnp.maximum(log_cap - held_mu, 0.0))
    first = lower_first + upper_first + clamped * deviation
    second = lower_second + upper_second + clamped * deviation**2
    return jnp.exp(2 * jnp.minimum(held_mu, log_cap)) * (second - first**2)


def lognormal_mean(mu: jax.Array, sigma: jax.Array) -> jax.Array:
    """E[U] without a clamp, as in the authors' code: up to e^30.3, larger than any log-probability."""
    return jnp.exp(mu + sigma**2 / 2)


def lognormal_variance(mu: jax.Array, sigma: jax.Array) -> jax.Array:
    """Var[U] without a clamp. Limited to e^80; the true one may be up to e^115, out of float32's range."""
    deviation = lognormal_mean(mu, sigma) * jnp.sqrt(jnp.expm1(sigma**2))
    return jnp.minimum(deviation, _MAX_DEVIATION) ** 2


def prefix_log_probability(log_credit: jax.Array) -> jax.Array:
    """The log p of every prefix at once: [T, ...] -> [T, ...], entry t for the steps 0 to t."""
    return jnp.cumsum(log_credit, axis=0)


def log1mexp(x: jax.Array) -> jax.Array:
    """log(1 - exp(x)) for x <= 0, accurate near 0 and far below; x is limited to at most -1e-30."""
    x = jnp.minimum(x, -_SMALLEST_LOG)
    near = x > -math.log(2.0)
    # Where this branch is not used it gets a harmless input: its infinite gradient times zero would be NaN.
    far = jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x)))
    return jnp.where(near, jnp.log(-jnp.expm1(x)), far)


def cross_entropy(log_probability: jax.Array, label: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean binary cross entropy over the entries in mask; 0 if there are none. All arrays: [...]. Returns a scalar.

    label: 1 = not yet violated. Values outside the mask are ignored, even NaN.
    """
    chex.assert_equal_shape([log_probability, label, mask])
    valid = mask > 0
    log_probability = jnp.where(valid, log_probability, -1.0)
    loss = -jnp.where(label > 0, log_probability, log1mexp(log_probability))
    return jnp.sum(jnp.where(valid, loss, 0.0)) / jnp.maximum(jnp.sum(valid), 1)


def coefficient_of_variation(mean: jax.Array, variance: jax.Array, mask: jax.Array) -> jax.Array:
    """sqrt(sum of variances) / sum of means over the steps in mask, 0 if it is empty: [T, ...] -> [...]."""
    chex.assert_equal_shape([mean, variance, mask])
    valid = mask > 0
    total_mean = jnp.sum(jnp.where(valid, mean, 0.0), axis=0)
    total_variance = jnp.sum(jnp.where(valid, variance, 0.0), axis=0)
    # With zero variance the square root has no finite gradient; the quotient is defined as 0 there.
    uncertain = total_variance > 0
    deviation = jnp.sqrt(jnp.where(uncertain, total_variance, 1.0))
    return jnp.where(uncertain, deviation / jnp.where(uncertain, total_mean, 1.0), 0.0)


def clamped_share(mu: jax.Array, sigma: jax.Array, *, clamp: Number) -> jax.Array:
    """The probability that U is clamped, [...]."""
    chex.assert_equal_shape([mu, sigma])
    return ndtr(-_reach(mu, sigma, clamp))


def jensen(log_probability: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gap log E[p] - E[log p] of the trajectories in mask, [N] each, and its bound Var[p] / (2 min p^2). Scalars.

    The bound is limited to 1e30. Both are NaN without trajectories.
    """
    chex.assert_equal_shape([log_probability, mask])
    valid = mask > 0
    count = jnp.sum(valid)
    weight = valid / count
    # Log-sum-exp: relative to the largest, so that the log mean is finite for probabilities too small for float32.
    largest = jnp.max(jnp.where(valid, log_probability, -jnp.inf))
    log_mean = largest + jnp.log(jnp.sum(weight * jnp.exp(jnp.where(valid, log_probability, 0.0) - largest)))
    gap = log_mean - jnp.sum(weight * jnp.where(valid, log_probability, 0.0))
    probability = jnp.where(valid, jnp.exp(log_probability), 0.0)
    variance = jnp.sum(weight * jnp.square(probability - jnp.sum(weight * probability)))
    smallest = jnp.min(jnp.where(valid, probability, jnp.inf))
    bound = jnp.where(variance > 0, jnp.minimum(variance / (2 * jnp.square(smallest)), 1e30), variance)
    return gap, bound


@flax.struct.dataclass
class Scores:
    """Scalars in [0, 1]; NaN if there are no entries to count. Positive = not violated."""

    accuracy: jax.Array
    precision: jax.Array
    recall: jax.Array


def scores(log_probability: jax.Array, label: jax.Array, mask: jax.Array) -> Scores:
    """Scores of the classifier p >= 1/2 on the entries in mask. All arrays: [...]; label: 1 = not yet violated."""
    chex.assert_equal_shape([log_probability, label, mask])
    valid, positive, said = mask > 0, label > 0, log_probability >= math.log(0.5)
    count = lambda what: jnp.sum(valid & what).astype(jnp.float32)  # noqa: E731
    return Scores(
        accuracy=count(said == positive) / jnp.sum(valid),
        precision=count(said & positive) / count(said),
        recall=count(said & positive) / count(positive),
    )


def _reach(mu: jax.Array, sigma: jax.Array, clamp: Number) -> jax.Array:
    """The standard normal value at which U reaches the clamp, as a constant.

    The integrands are continuous there, so moving this bound does not change any integral to first order. Its
    derivative is huge for small sigma and would only add noise.
    """
    return lax.stop_gradient((jnp.log(-clamp) - mu) / sigma)
