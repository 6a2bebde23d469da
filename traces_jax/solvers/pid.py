"""A Lagrange multiplier from a PID controller: it reacts to a violation, to its sum, and to its growth."""

import flax.struct
import jax
import jax.numpy as jnp

from traces_jax.config import PIDConfig


@flax.struct.dataclass
class PIDState:
    """The controller's memory.

    Attributes:
      integral: [] at least 0.
      violation: [] moving average of the violation.
      measures: [delay] moving averages of the measure in the last iterations, the oldest first.
      multiplier: [] the last output, at least 0.
    """

    integral: jax.Array
    violation: jax.Array
    measures: jax.Array
    multiplier: jax.Array


def init(initial: jax.Array | float, delay: int) -> PIDState:
    """The integral, and so the multiplier, starts at `initial`."""
    initial = jnp.asarray(initial, jnp.float32)
    return PIDState(integral=initial, violation=jnp.zeros(()), measures=jnp.zeros((delay,)), multiplier=initial)


def update(
    state: PIDState, measure: jax.Array, limit: jax.Array | float, fresh: jax.Array | bool, *, pid: PIDConfig
) -> PIDState:
    """One step of the controller, for a measure that should not exceed its limit.

    fresh: [] whether episodes have ended since the last update. If none has, or the measure is NaN because none has
    ended yet, the state stays unchanged.
    """
    known = jnp.isfinite(measure) & fresh
    gap = measure - limit
    integral = jnp.maximum(state.integral + pid.integral * gap, 0.0)
    violation = _average(state.violation, gap, pid.proportional_smoothing)
    average = _average(state.measures[-1], measure, pid.derivative_smoothing)
    rise = jnp.maximum(average - state.measures[0], 0.0)
    moved = PIDState(
        integral=integral,
        violation=violation,
        measures=jnp.append(state.measures[1:], average),
        multiplier=jnp.maximum(pid.proportional * violation + integral + pid.derivative * rise, 0.0),
    )
    return jax.tree.map(lambda new, old: jnp.where(known, new, old), moved, state)


def unit(limit: jax.Array) -> jax.Array:
    """In which violations of this limit [] are measured: the limit's size, at least 1 so that a limit of 0 has one."""
    return jnp.maximum(jnp.abs(limit), 1.0)


def _average(past: jax.Array, value: jax.Array, smoothing: jax.Array | float) -> jax.Array:
    return smoothing * past + (1.0 - smoothing) * value
