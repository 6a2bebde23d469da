"""The GRU's written gradient against the one that JAX finds by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close
from jax import lax

from traces_jax.estimator import gru

TIMES, BATCH, FEATURES = 7, 3, 5


def layer_of(hidden):
    shapes = ((FEATURES, 3 * hidden), (hidden, 3 * hidden), (3 * hidden,), (3 * hidden,))
    keys = jax.random.split(jax.random.key(0), 4)
    return gru.GruLayer(
        *(hidden**-0.5 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    )


def plain(layer, inputs, began):
    """PyTorch's equations, word by word. inputs: [T, B, F]; began: [T, B]."""

    def step(state, now):
        inputs_now, began_now = now
        state = jnp.where(began_now[:, None], 0.0, state)
        x_reset, x_update, x_new = jnp.split(inputs_now @ layer.input_kernel + layer.input_bias, 3, axis=-1)
        h_reset, h_update, h_new = jnp.split(state @ layer.hidden_kernel + layer.hidden_bias, 3, axis=-1)
        reset, update = jax.nn.sigmoid(x_reset + h_reset), jax.nn.sigmoid(x_update + h_update)
        new = jnp.tanh(x_new + reset * h_new)
        state = (1 - update) * new + update * state
        return state, state

    return lax.scan(step, jnp.zeros((inputs.shape[1], layer.hidden_kernel.shape[0])), (inputs, began))[1]


# 20 units are beyond what is written out, and multiplied as matrices.
@pytest.mark.parametrize("hidden", [1, 4, 20])
@pytest.mark.parametrize("restarts", [False, True])
def test_states_and_gradients_are_those_of_the_equations(hidden, restarts):
    layer = layer_of(hidden)
    inputs = jax.random.normal(jax.random.key(1), (TIMES, BATCH, FEATURES))
    began = jnp.zeros((TIMES, BATCH), bool).at[3, 1].set(restarts).at[5, 2].set(restarts)
    weight = jax.random.normal(jax.random.key(2), (TIMES, BATCH, hidden))

    def ours(layer, inputs):
        return gru.run(layer, gru.from_input(layer, inputs), began if restarts else None)

    summed = lambda states: lambda *of: jnp.sum(weight * states(*of))  # noqa: E731
    np.testing.assert_allclose(ours(layer, inputs), plain(layer, inputs, began), rtol=1e-5, atol=1e-6)
    found = jax.grad(summed(ours), argnums=(0, 1))(layer, inputs)
    expected = jax.grad(summed(lambda *of: plain(*of, began)), argnums=(0, 1))(layer, inputs)
    assert_trees_close(found, expected, rtol=1e-4, atol=1e-5)
    if restarts:
        # The other environment has nothing to do with it.
        alone = plain(layer, inputs, jnp.zeros_like(began))
        np.testing.assert_allclose(ours(layer, inputs)[:, 0], alone[:, 0], rtol=1e-5, atol=1e-6)
        assert np.abs(ours(layer, inputs)[3:, 1] - alone[3:, 1]).max() > 1e-3


def test_lanes_by_vmap_are_single_runs():
    layer = layer_of(4)
    lanes = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), layer)
    inputs = jax.random.normal(jax.random.key(1), (TIMES, BATCH, FEATURES))
    gradient = jax.grad(lambda layer: jnp.sum(jnp.sin(gru.run(layer, gru.from_input(layer, inputs), None))))
    together = jax.vmap(gradient)(lanes)
    for lane in range(2):
        ours, alone = (jax.tree.map(lambda leaf, lane=lane: leaf[lane], tree) for tree in (together, lanes))
        assert_trees_close(ours, gradient(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("restarts", [False, True])
def test_states_go_on_where_others_left_off(restarts):
    """In two pieces as in one, and so are the gradients."""
    layer = layer_of(4)
    inputs = jax.random.normal(jax.random.key(1), (TIMES, BATCH, FEATURES))
    began = jnp.zeros((TIMES, BATCH), bool).at[3, 1].set(restarts).at[5, 2].set(restarts)
    weight = jax.random.normal(jax.random.key(2), (TIMES, BATCH, 4))

    def pieces(layer, inputs):
        first = gru.run(layer, gru.from_input(layer, inputs[:3]), began[:3])
        return jnp.concatenate([first, gru.run(layer, gru.from_input(layer, inputs[3:]), began[3:], first[-1])])

    def total(states):
        return lambda *of: jnp.sum(weight * states(*of))

    whole = lambda *of: plain(*of, began)  # noqa: E731
    np.testing.assert_allclose(pieces(layer, inputs), whole(layer, inputs), rtol=1e-5, atol=1e-6)
    found = jax.grad(total(pieces), argnums=(0, 1))(layer, inputs)
    assert_trees_close(found, jax.grad(total(whole), argnums=(0, 1))(layer, inputs), rtol=1e-4, atol=1e-5)
