"""The TraCeS estimator as a cost model that can be fitted: what it says of labelled trajectories, and its loss."""

import jax
import numpy as np

from traces_jax.core.optimize import Number
from traces_jax.estimator import credit, network, refit
from traces_jax.feedback import trajectories
from traces_jax.feedback.trajectories import Trajectories


def model(*, prepare: refit.Prepare, ends: np.ndarray, clamp: Number) -> refit.Model:
    """The estimator for `refit` and `pretrain`. prepare: raw inputs -> the network's; ends: [P] prefix lengths."""

    def judge(estimator: network.Estimator, rows: Trajectories) -> tuple[jax.Array, jax.Array]:
        mean = mean_credit(estimator, rows, prepare=prepare, clamp=clamp)
        return mean, at_prefixes(mean, rows.length, ends)

    def loss(estimator: network.Estimator, rows: Trajectories, key: jax.Array) -> jax.Array:
        noise = jax.random.normal(key, (rows.inputs.shape[1], rows.count))
        return sampled_loss(estimator, rows, noise, prepare=prepare, ends=ends, clamp=clamp)

    return refit.Model(loss=loss, judge=judge)


def at_prefixes(mean: jax.Array, length: jax.Array, ends: np.ndarray) -> jax.Array:
    """The expected log-probability of all prefixes, [N, P]: minus the summed mean credits [T, N]. length: [N]."""
    return trajectories.at_prefixes(credit.prefix_log_probability(-mean), length, ends)


def mean_credit(
    estimator: network.Estimator, rows: Trajectories, *, prepare: refit.Prepare, clamp: Number
) -> jax.Array:
    """The mean clamped credit of every step of rows [N], [T, N]; undefined past their ends."""
    _, mu, sigma = network.apply(estimator, refit.time_major(rows.inputs, prepare))
    return credit.clamped_mean(mu, sigma, clamp=clamp)


def sampled_loss(
    estimator: network.Estimator,
    rows: Trajectories,
    noise: jax.Array,
    *,
    prepare: refit.Prepare,
    ends: np.ndarray,
    clamp: Number,
) -> jax.Array:
    """Cross entropy of the labels of rows [N] under sampled credits. noise: [T, N] standard normal. Returns []."""
    _, mu, sigma = network.apply(estimator, refit.time_major(rows.inputs, prepare))
    log_credit = credit.sample(mu, sigma, noise, clamp=clamp)
    log_probability = trajectories.at_prefixes(credit.prefix_log_probability(log_credit), rows.length, ends)
    return credit.cross_entropy(log_probability, rows.labels, rows.mask)
