"""A GRU layer with PyTorch's equations and a custom gradient.

JAX's own gradient of the scan would compute all gates and weight gradients step by step. Once all hidden states are
known, the gates of all steps are one batched computation. Only a linear recursion is left in the loop: the gradient of
the hidden states, passed from step to step.

Inside, the layout is units first and batch last, [H, B], so that the batch fills a CPU's vector registers.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

# Above this many units, a matrix product is used instead of unrolled sums.
_MOST_UNROLLED = 16


@flax.struct.dataclass
class GruLayer:
    """input_kernel: [F, 3H]; hidden_kernel: [H, 3H]; biases: [3H]. Gates in PyTorch's order: reset, update, new."""

    input_kernel: jax.Array
    hidden_kernel: jax.Array
    input_bias: jax.Array
    hidden_bias: jax.Array


def from_input(layer: GruLayer, inputs: jax.Array) -> jax.Array:
    """The input's part of the gates, [..., F] -> [..., 3H]. Independent of the state: one product for all steps."""
    return inputs @ layer.input_kernel + layer.input_bias


def step(layer: GruLayer, state: jax.Array, gate_inputs: jax.Array) -> jax.Array:
    """state: [..., H]; gate_inputs: [..., 3H]. Returns the new state."""
    rows, units = gate_inputs.reshape(-1, gate_inputs.shape[-1]), state.reshape(-1, state.shape[-1]).T
    gates = _open(_hidden_weights(layer.hidden_kernel, layer.hidden_bias), units, _cut(rows))
    return _mix(gates, units).T.reshape(state.shape)


def run(layer: GruLayer, gate_inputs: jax.Array, began: jax.Array | None, start: jax.Array | None = None) -> jax.Array:
    """All states [T, B, H]. gate_inputs: [T, B, 3H]; began: [T, B] where the state is reset; start: [B, H], or zero."""
    kept = None if began is None else 1.0 - began[:, None]
    return _run(layer.hidden_kernel, layer.hidden_bias, gate_inputs, kept, None if start is None else start.T)


@flax.struct.dataclass
class _Three:
    """One array for each gate, with units on the second-last axis."""

    reset: jax.Array
    update: jax.Array
    new: jax.Array


@flax.struct.dataclass
class _Open:
    """A step's gates, [H, B] each. candidate: the state's part of the new gate, before the reset gate is applied."""

    reset: jax.Array
    update: jax.Array
    new: jax.Array
    candidate: jax.Array


@flax.struct.dataclass
class _Weights:
    """kernel: [H, H] each, from state to gate; bias: [H, 1] each."""

    kernel: _Three
    bias: _Three


def _hidden_weights(kernel: jax.Array, bias: jax.Array) -> _Weights:
    return _Weights(kernel=_Three(*jnp.split(kernel, 3, axis=1)), bias=_Three(*jnp.split(bias[:, None], 3)))


def _cut(joined: jax.Array) -> _Three:
    """[..., B, 3H] -> [..., H, B] each."""
    return _Three(*(jnp.swapaxes(part, -1, -2) for part in jnp.split(joined, 3, axis=-1)))


def _join(gates: _Three) -> jax.Array:
    """[..., H, B] each -> [..., B, 3H]."""
    return jnp.swapaxes(jnp.concatenate([gates.reset, gates.update, gates.new], axis=-2), -1, -2)


def _product(kernel: jax.Array, units: jax.Array) -> jax.Array:
    """kernel: [inputs, outputs]; units: [inputs, B]. Returns [outputs, B]."""
    if kernel.shape[0] > _MOST_UNROLLED:
        return kernel.T @ units
    # For few units, unrolled sums are fused with the rest of the step. A matrix product is a separate call: with four
    # units it takes three times as long.
    terms = [weights[:, None] * unit for weights, unit in zip(kernel, units, strict=True)]
    return sum(terms[1:], terms[0])


def _open(weights: _Weights, state: jax.Array, gate_inputs: _Three) -> _Open:
    """state: [H, B]; gate_inputs: [H, B] each."""
    from_state = jax.tree.map(lambda kernel, bias: _product(kernel, state) + bias, weights.kernel, weights.bias)
    reset = jax.nn.sigmoid(gate_inputs.reset + from_state.reset)
    return _Open(
        reset=reset,
        update=jax.nn.sigmoid(gate_inputs.update + from_state.update),
        new=jnp.tanh(gate_inputs.new + reset * from_state.new),
        candidate=from_state.new,
    )


def _mix(gates: _Open, state: jax.Array) -> jax.Array:
    return gates.new + gates.update * (state - gates.new)


@jax.custom_vjp
def _run(
    kernel: jax.Array, bias: jax.Array, gate_inputs: jax.Array, kept: jax.Array | None, start: jax.Array | None
) -> jax.Array:
    """kernel: [H, 3H]; bias: [3H]; gate_inputs: [T, B, 3H]; kept: [T, 1, B] zero where the state is reset.

    start: [H, B] the state before the first step, or zero.
    """
    weights = _hidden_weights(kernel, bias)

    def body(state: jax.Array, now: tuple[_Three, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
        inputs_now, kept_now = now
        if kept_now is not None:
            state = kept_now * state
        state = _mix(_open(weights, state, inputs_now), state)
        return state, state

    first = jnp.zeros((kernel.shape[0], gate_inputs.shape[1])) if start is None else start
    return jnp.swapaxes(lax.scan(body, first, (_cut(gate_inputs), kept))[1], 1, 2)


def _run_forward(kernel, bias, gate_inputs, kept, start):
    states = _run(kernel, bias, gate_inputs, kept, start)
    return states, (kernel, bias, gate_inputs, kept, start, states)


def _run_backward(residuals, states_gradient):
    kernel, bias, gate_inputs, kept, start, states = residuals
    weights = _hidden_weights(kernel, bias)
    first = jnp.zeros_like(states[:1]) if start is None else start.T[None]
    before = jnp.swapaxes(jnp.concatenate([first, states[:-1]]), 1, 2)
    if kept is not None:
        before = kept * before
    gates = jax.vmap(_open, in_axes=(None, 0, 0))(weights, before, _cut(gate_inputs))
    # Derivatives of the state with respect to each gate's pre-activation, [T, H, B] each.
    to_new = (1.0 - gates.update) * (1.0 - jnp.square(gates.new))
    to_reset = to_new * gates.candidate * gates.reset * (1.0 - gates.reset)
    to_update = (before - gates.new) * gates.update * (1.0 - gates.update)
    to_candidate = to_new * gates.reset
    # The gradient reaches the previous state through all three gates, and directly.
    back = jax.tree.map(jnp.transpose, weights.kernel)
    to_gates, to_state = _Three(reset=to_reset, update=to_update, new=to_candidate), gates.update

    def body(later: jax.Array, now: tuple[jax.Array, _Three, jax.Array, jax.Array | None]):
        own, to_gates_now, to_state_now, kept_now = now
        gradient = own + later
        parts = jax.tree.map(lambda kernel, to: _product(kernel, to * gradient), back, to_gates_now)
        earlier = to_state_now * gradient + parts.reset + parts.update + parts.new
        return earlier if kept_now is None else kept_now * earlier, gradient

    own = jnp.swapaxes(states_gradient, 1, 2)
    to_start, gradient = lax.scan(body, jnp.zeros_like(own[0]), (own, to_gates, to_state, kept), reverse=True)
    from_state = _join(jax.tree.map(lambda to: to * gradient, to_gates))
    to_inputs = _join(_Three(reset=to_reset * gradient, update=to_update * gradient, new=to_new * gradient))
    kernel_gradient = jnp.einsum("thb,tbg->hg", before, from_state)
    kept_gradient = None if kept is None else jnp.zeros_like(kept)
    start_gradient = None if start is None else to_start
    return kernel_gradient, jnp.sum(from_state, axis=(0, 1)), to_inputs, kept_gradient, start_gradient


_run.defvjp(_run_forward, _run_backward)
