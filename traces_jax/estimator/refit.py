"""Fitting a cost model to labelled trajectories."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.config import RefitConfig
from traces_jax.core import optimize
from traces_jax.core.optimize import Number, Trained
from traces_jax.estimator import credit
from traces_jax.feedback.trajectories import Ring, Trajectories

# Raw inputs [..., F] -> the network's inputs [..., F].
Prepare = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Model:
    """What fitting has to know of a cost model.

    Attributes:
      loss: (parameters, rows [N], key) -> the loss [] of their labels. key: consumed.
      judge: (parameters, rows [N]) -> the cost of every step [T, N], undefined past the ends of the rows, and the
        log-probabilities [N, P] that their labels are "acceptable".
    """

    loss: Callable[[Any, Trajectories, jax.Array], jax.Array]
    judge: Callable[[Any, Trajectories], tuple[jax.Array, jax.Array]]


def step(
    fitted: Trained,
    batch: Trajectories,
    key: jax.Array,
    *,
    lr: Number,
    weight_decay: Number,
    max_grad_norm: Number,
    loss: Callable[[Any, Trajectories, jax.Array], jax.Array],
    axis: str | None = None,
) -> tuple[Trained, jax.Array]:
    """One gradient step on a batch. Devices along the mapped `axis` have one batch each and average their gradients.

    loss: see `Model`. key: consumed. Returns the fitted model and the loss [] before the step.
    """
    value, gradient = jax.value_and_grad(loss)(fitted.params, batch, key)
    if axis is not None:
        value, gradient = lax.pmean((value, gradient), axis)
    # Decoupled from the gradient, as in AdamW: in the gradient, Adam would divide the decay by the gradient's size.
    decayed = jax.tree.map(lambda p: (1.0 - lr * weight_decay) * p, fitted.params)
    fitted = dataclasses.replace(fitted, params=decayed)
    return optimize.step(fitted, gradient, lr=lr, max_grad_norm=max_grad_norm), value


def refit(
    fitted: Trained,
    new: Trajectories,
    log_probability: jax.Array,
    store: Ring,
    key: jax.Array,
    *,
    refit: RefitConfig,
    model: Model,
    rehearses: bool = False,
) -> tuple[Trained, jax.Array, jax.Array]:
    """Up to `refit.passes` passes of gradient steps; stops when the accuracy on the new rows reaches the target.

    Every step mixes rows drawn from `new` with rows drawn from the store. log_probability: [N, P] of the new rows'
    prefixes, as predicted before the refit. key: consumed. rehearses: whether one pass over the store is made where
    there are no new rows; otherwise none is. Returns the fitted model, its prediction for the new rows' prefixes, and
    the number of passes.
    """
    descend = functools.partial(
        step,
        lr=refit.lr,
        weight_decay=refit.weight_decay,
        max_grad_norm=refit.max_grad_norm,
        loss=model.loss,
    )

    def mixed_step(fitted: Trained, key: jax.Array) -> tuple[Trained, None]:
        new_key, stored_key, noise_key = jax.random.split(key, 3)
        batch = jax.tree.map(
            lambda a, b: jnp.concatenate([a, b]),
            draw(new, new_key, refit.new_batch),
            draw(store.rows, stored_key, refit.stored_batch),
        )
        fitted, _ = descend(fitted, batch, noise_key)
        return fitted, None

    def one_pass(carry: _Pass) -> _Pass:
        keys = jax.random.split(jax.random.fold_in(key, carry.index), refit.steps)
        fitted, _ = lax.scan(mixed_step, carry.fitted, keys)
        _, log_probability = model.judge(fitted.params, new)
        return _Pass(
            index=carry.index + 1,
            fitted=fitted,
            log_probability=log_probability,
            accuracy=credit.scores(log_probability, new.labels, new.mask).accuracy,
        )

    # At least one pass is made, even if the accuracy is already high enough.
    start = _Pass(
        index=jnp.zeros((), jnp.int32), fitted=fitted, log_probability=log_probability, accuracy=jnp.zeros(())
    )
    # Without new rows the accuracy is NaN after the first pass, which therefore is the last.
    there = jnp.any(new.valid) | (rehearses & (store.written > 0))
    end = lax.while_loop(
        lambda carry: there & (carry.index < refit.passes) & (carry.accuracy < refit.target_accuracy), one_pass, start
    )
    return end.fitted, end.log_probability, end.index


def draw(rows: Trajectories, key: jax.Array, count: int) -> Trajectories:
    """`count` of the filled slots, with replacement; all empty if none is filled. key: consumed."""
    filled = jnp.cumsum(rows.valid)
    # The n-th filled slot is where the running count first reaches n.
    wanted = jax.random.randint(key, (count,), 0, jnp.maximum(filled[-1], 1)) + 1
    chosen = jnp.minimum(jnp.searchsorted(filled, wanted), rows.count - 1)
    return jax.tree.map(lambda leaf: leaf[chosen], rows)


@flax.struct.dataclass
class _Pass:
    index: jax.Array
    fitted: Trained
    log_probability: jax.Array
    accuracy: jax.Array


def time_major(inputs: jax.Array, prepare: Prepare) -> jax.Array:
    """The network's inputs [T, N, F] from raw inputs [N, T, F]."""
    return jnp.swapaxes(prepare(inputs), 0, 1)
