"""The Lagrange multiplier of one constraint: measure <= limit."""

import dataclasses

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


def violation(measure: jax.Array, limit: jax.Array, tolerance: jax.Array) -> jax.Array:
    """How far the measure is above its limit, in tolerances, within [-1, 1]; 0 while there is no measure (NaN)."""
    return jnp.nan_to_num(jnp.clip((measure - limit) / tolerance, -1.0, 1.0))


def integrate(
    state: LagrangeState,
    violation: jax.Array,
    fresh: jax.Array | bool,
    *,
    gain: jax.Array | float,
    minimum: jax.Array | float,
    maximum: jax.Array | float,
) -> LagrangeState:
    """The integral part of a controller of log(multiplier), kept between the logarithms of `minimum` and `maximum`.

    Steps of the logarithm suit any scale of the cost: the multiplier finds its level in tens of iterations, whether
    that is 0.1 or 10, and falls as fast as it rose. The bounds prevent windup. fresh: see `update`.
    """
    moved = jnp.clip(state.multiplier * jnp.exp(gain * violation), minimum, maximum)
    return dataclasses.replace(state, multiplier=jnp.where(fresh, moved, state.multiplier))


def rising(first: jax.Array | float, last: jax.Array | float, progress: jax.Array) -> jax.Array:
    """A bound [] that goes geometrically from `first` to `last`. progress: [] fraction of the run completed."""
    return jnp.asarray(first) ** (1.0 - progress) * jnp.asarray(last) ** progress


def controlled(multiplier: jax.Array, violation: jax.Array, *, gain: jax.Array | float) -> jax.Array:
    """The multiplier applied now: with the proportional part of the controller, which damps it (see `in_force`)."""
    return multiplier * jnp.exp(gain * violation)


def mix(reward_advantage: jax.Array, cost_advantage: jax.Array, multiplier: jax.Array) -> jax.Array:
    """The advantage of the penalized objective, rescaled so that a large multiplier does not enlarge the step."""
    return (reward_advantage - multiplier * cost_advantage) / (1.0 + multiplier)
