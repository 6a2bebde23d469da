"""The optimizer of every network: Adam with gradient norm clipping."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

# A traced number: an array inside the program, a plain float in tests.
Number = jax.Array | float


@flax.struct.dataclass
class Trained:
    """One network's parameters and Adam's moments."""

    params: Any
    optimizer: optax.OptState


def init(params: Any) -> Trained:
    """The parameters with zero moments."""
    return Trained(params=params, optimizer=optax.scale_by_adam().init(params))


def step(trained: Trained, gradient: Any, *, lr: Number, max_grad_norm: Number) -> Trained:
    """One gradient step. gradient: same structure as the parameters."""
    scale = jnp.minimum(1.0, max_grad_norm / (optax.tree.norm(gradient) + 1e-6))
    gradient = jax.tree.map(lambda g: g * scale, gradient)
    direction, optimizer = optax.scale_by_adam().update(gradient, trained.optimizer)
    params = jax.tree.map(lambda p, d: p - lr * d, trained.params, direction)
    return Trained(params=params, optimizer=optimizer)
