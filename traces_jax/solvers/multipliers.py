"""The Lagrange multiplier of one constraint: measure <= limit."""

import flax.struct
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class LagrangeState:
    """multiplier: [] at least 0; optimizer: Adam's moments."""

    multiplier: jax.Array
    optimizer: optax.OptState


def init(initial: jax.Array | float) -> LagrangeState:
    """Starts the multiplier at `initial`."""
    multiplier = jnp.asarray(initial, jnp.float32)
    return LagrangeState(multiplier=multiplier, optimizer=optax.scale_by_adam().init(multiplier))


def update(
    state: LagrangeState,
    measure: jax.Array,
    limit: jax.Array | float,
    fresh: jax.Array | bool,
    *,
    lr: jax.Array | float,
    maximum: jax.Array | float,
) -> LagrangeState:
    """One Adam step of ascent on multiplier * (measure - limit), kept between zero and `maximum`.

    fresh: [] whether episodes have ended since the last update. If none has, this measure was already used and the
    state stays unchanged. The same holds for a NaN measure (no episode has ended yet).
    """
    known = jnp.isfinite(measure) & fresh
    gradient = jnp.where(known, limit - measure, 0.0)
    step, optimizer = optax.scale_by_adam().update(gradient, state.optimizer)
    moved = LagrangeState(multiplier=jnp.clip(state.multiplier - lr * step, 0.0, maximum), optimizer=optimizer)
    return jax.tree.map(lambda new, old: jnp.where(known, new, old), moved, state)


def in_force(
    multiplier: jax.Array, measure: jax.Array, limit: jax.Array | float, *, proportional: jax.Array | float
) -> jax.Array:
    """The multiplier applied now: the learned one plus a term proportional to the current violation.

    The learned multiplier integrates past violations, and the policy integrates the multiplier. Two integrators in a
    loop oscillate around the limit. The proportional term damps this. It is bounded: a measure that is off by its
    limit or more moves the multiplier by `proportional`.
    """
    violation = (measure - limit) / jnp.maximum(jnp.abs(limit), 1e-6)
    moved = multiplier + proportional * jnp.clip(violation, -1.0, 1.0)
    return jnp.where(jnp.isfinite(measure), jnp.maximum(moved, 0.0), multiplier)


def mix(reward_advantage: jax.Array, cost_advantage: jax.Array, multiplier: jax.Array) -> jax.Array:
    """The advantage of the penalized objective, rescaled so that a large multiplier does not enlarge the step."""
    return (reward_advantage - multiplier * cost_advantage) / (1.0 + multiplier)
