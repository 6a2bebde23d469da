"""How every network is trained: Adam on gradients of bounded norm."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

# A traced number: an array inside the program, a plain float in tests.
Number = jax.Array | float


@flax.struct.dataclass
class Trained:
    """One network's parameters and the moments of its optimiser."""

    params: Any
    optimizer: optax.OptState


def init(params: Any) -> Trained:
    """Ready for the first step."""
    return Trained(params=params, optimizer=optax.scale_by_adam().init(params))


def step(trained: Trained, gradient: Any, *, lr: Number, max_grad_norm: Number) -> Trained:
    """One step down a gradient of the parameters' structure."""
    scale = jnp.minimum(1.0, max_grad_norm / (optax.tree.norm(gradient) + 1e-6))
    gradient = jax.tree.map(lambda g: g * scale, gradient)
    direction, optimizer = optax.scale_by_adam().update(gradient, trained.optimizer)
    params = jax.tree.map(lambda p, d: p - lr * d, trained.params, direction)
    return Trained(params=params, optimizer=optimizer)
