"""The network: GRU layers encode a trajectory, a decoder outputs a log-normal distribution of each step's credit.

Plain functions instead of Flax modules: the input half of a GRU layer does not depend on its state, so it is one matrix
product for all steps, outside the scan. A Flax cell computes both halves inside it.
"""

import dataclasses
import math

import chex
import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

from traces_jax.estimator import gru
from traces_jax.estimator.gru import GruLayer

# Output ranges. Credits outside them have no practical meaning in float32.
MU_RANGE = (-20.0, 3.0)
LOG_SIGMA_RANGE = (-20.0, 2.0)
# The decoder works on blocks of at least this many rows, and on at most this many blocks.
_BLOCK_ROWS, _MOST_BLOCKS = 1024, 32


@flax.struct.dataclass
class Dense:
    """kernel: [inputs, outputs]; bias: [outputs]."""

    kernel: jax.Array
    bias: jax.Array


@flax.struct.dataclass
class Estimator:
    """Parameters.

    Attributes:
      layers: L GRU layers; the first reads F features, the others H.
      decoder: reads the summaries before and after a step, 2H, and optionally the step itself, 2H + F.
      mean_head, log_std_head: one output each.
    """

    layers: tuple[GruLayer, ...]
    decoder: tuple[Dense, ...]
    mean_head: Dense
    log_std_head: Dense


def initial_mean(horizon: int, probability: float = 0.95) -> float:
    """The mu at which a trajectory of `horizon` such steps is acceptable with `probability`.

    A new estimator that starts there does not predict a violation for every trajectory, which it would have to unlearn.
    """
    return math.log(-math.log(probability) / horizon)


def init(
    key: jax.Array,
    *,
    features: int,
    hidden: int,
    layers: int,
    decoder: tuple[int, ...],
    reads_step: bool,
    initial_mean: float,
    mean_spread: float,
) -> Estimator:
    """Initial parameters, as in PyTorch: uniform in +-1 / sqrt(fan in), in GRU layers in +-1 / sqrt(H).

    Except the mean head: weights with zero mean and standard deviation `mean_spread`, and bias `initial_mean`. With
    weights of equal sign, the first refits could move mu by switching every decoder unit off permanently. reads_step:
    see `Estimator.decoder`. key: consumed.
    """
    gru_key, decoder_key, mean_key, log_std_key = jax.random.split(key, 4)
    gru_inputs = (features, *(hidden for _ in range(layers - 1)))
    decoder_inputs = (2 * hidden + (features if reads_step else 0), *decoder[:-1])
    mean_kernel = mean_spread * jax.random.normal(mean_key, (decoder[-1], 1))
    return Estimator(
        layers=tuple(
            _fresh_gru(layer_key, inputs, hidden)
            for layer_key, inputs in zip(jax.random.split(gru_key, layers), gru_inputs, strict=True)
        ),
        decoder=tuple(
            _fresh_dense(layer_key, inputs, outputs)
            for layer_key, inputs, outputs in zip(
                jax.random.split(decoder_key, len(decoder)), decoder_inputs, decoder, strict=True
            )
        ),
        mean_head=Dense(kernel=mean_kernel, bias=jnp.full((1,), initial_mean, jnp.float32)),
        log_std_head=_fresh_dense(log_std_key, decoder[-1], 1),
    )


def with_memory(estimator: Estimator, steps: int) -> Estimator:
    """The same, but units of the top layer have time constants of 2, ..., `steps` steps, spaced geometrically.

    An update gate at z has a time constant of 1 / (1 - z) steps. With PyTorch's initialization all gates start near
    1/2, which is two steps. From there it takes long to learn to sum over hundreds.
    """
    top, hidden = estimator.layers[-1], _hidden(estimator)
    update = slice(hidden, 2 * hidden)
    kept = jnp.log(jnp.geomspace(2.0, max(steps, 2), hidden) - 1.0)
    top = dataclasses.replace(
        top, input_bias=top.input_bias.at[update].set(kept), hidden_bias=top.hidden_bias.at[update].set(0.0)
    )
    return dataclasses.replace(estimator, layers=(*estimator.layers[:-1], top))


def advance(estimator: Estimator, carry: jax.Array, inputs: jax.Array) -> jax.Array:
    """One time step. carry: [L, ..., H]; inputs: [..., F]. Returns the new carry; its top layer is the summary."""
    chex.assert_axis_dimension(inputs, -1, _features(estimator))
    # A different batch dimension would broadcast silently.
    chex.assert_shape(carry, (len(estimator.layers), *inputs.shape[:-1], _hidden(estimator)))
    below, states = inputs, []
    for layer, state in zip(estimator.layers, carry, strict=True):
        below = gru.step(layer, state, gru.from_input(layer, below))
        states.append(below)
    return jnp.stack(states)


def encode(estimator: Estimator, inputs: jax.Array, began: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Encodes full episodes. inputs: [T, B, F]; began: [T, B] where one begins, if not only at the first step.

    Returns:
      Summaries [T, B, H] before and after each step; zero before an episode's first step.
    """
    return proceed(estimator, None, inputs, began)[:2]


def proceed(
    estimator: Estimator, carry: jax.Array | None, inputs: jax.Array, began: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same for episodes that are open at the first step, with a carry [L, B, H] from the steps before; None: zero.

    Returns the summaries, and the carry [L, B, H] after the last step.
    """
    chex.assert_rank(inputs, 3)
    chex.assert_axis_dimension(inputs, -1, _features(estimator))
    if began is not None:
        chex.assert_shape(began, inputs.shape[:-1])
    after, last = inputs, []
    for index, layer in enumerate(estimator.layers):
        after = gru.run(layer, gru.from_input(layer, after), began, None if carry is None else carry[index])
        last.append(after[-1])
    first = jnp.zeros_like(after[:1]) if carry is None else carry[-1:]
    before = jnp.concatenate([first, after[:-1]])
    return before if began is None else jnp.where(began[..., None], 0.0, before), after, jnp.stack(last)


def decode(estimator: Estimator, before: jax.Array, after: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The credit of a step from the summaries before and after it, [..., H] each, and its inputs [..., F].

    Returns:
      mu, sigma, both [...]: the step lowers the log-probability of being acceptable by U ~ LogNormal(mu, sigma).
    """
    read = _decoder_inputs(estimator, before, after, inputs)
    batch_shape, width = read.shape[:-1], read.shape[-1]
    rows = math.prod(batch_shape)
    blocks = max(n for n in range(1, _MOST_BLOCKS + 1) if rows % n == 0 and (n == 1 or rows // n >= _BLOCK_ROWS))

    # Block by block, recomputed in the backward pass: the activations of some thousand rows fit into a CPU's cache.
    # Those of a refit's whole batch do not, and writing them to memory and reading them back takes three times as long.
    @jax.checkpoint
    def block(read: jax.Array) -> tuple[jax.Array, jax.Array]:
        top = _activations(estimator, read)[-1]
        return _dense(estimator.mean_head, top)[..., 0], _dense(estimator.log_std_head, top)[..., 0]

    heads = lax.map(block, read.reshape(blocks, rows // blocks, width))
    mu, log_sigma = (head.reshape(batch_shape) for head in heads)
    return jnp.clip(mu, *MU_RANGE), jnp.exp(jnp.clip(log_sigma, *LOG_SIGMA_RANGE))


def apply(estimator: Estimator, inputs: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Encodes and decodes full trajectories. inputs: [T, B, F].

    Returns:
      hidden [T, B, H] after each step; mu, sigma [T, B] of each step.
    """
    before, hidden = encode(estimator, inputs)
    mu, sigma = decode(estimator, before, hidden, inputs)
    return hidden, mu, sigma


def dead_share(estimator: Estimator, before: jax.Array, after: jax.Array, inputs: jax.Array) -> jax.Array:
    """Fraction of decoder units that are inactive for all rows given (see `decode`), so have no gradient. Scalar."""
    units = _activations(estimator, _decoder_inputs(estimator, before, after, inputs))
    off = [jnp.all(layer <= 0, axis=tuple(range(layer.ndim - 1))) for layer in units]
    return jnp.mean(jnp.concatenate(off))


def _decoder_inputs(estimator: Estimator, before: jax.Array, after: jax.Array, inputs: jax.Array) -> jax.Array:
    chex.assert_equal_shape([before, after])
    chex.assert_axis_dimension(before, -1, _hidden(estimator))
    chex.assert_shape(inputs, (*before.shape[:-1], _features(estimator)))
    summaries = jnp.concatenate([before, after], axis=-1)
    reads_step = estimator.decoder[0].kernel.shape[0] > summaries.shape[-1]
    return jnp.concatenate([summaries, inputs], axis=-1) if reads_step else summaries


def _activations(estimator: Estimator, read: jax.Array) -> list[jax.Array]:
    """Outputs of all decoder layers, [..., width] each."""
    below, all_units = read, []
    for layer in estimator.decoder:
        below = jax.nn.relu(_dense(layer, below))
        all_units.append(below)
    return all_units


def _features(estimator: Estimator) -> int:
    return estimator.layers[0].input_kernel.shape[0]


def _hidden(estimator: Estimator) -> int:
    return estimator.layers[0].hidden_kernel.shape[0]


def _dense(layer: Dense, inputs: jax.Array) -> jax.Array:
    return inputs @ layer.kernel + layer.bias


def _fresh_gru(key: jax.Array, inputs: int, hidden: int) -> GruLayer:
    shapes = ((inputs, 3 * hidden), (hidden, 3 * hidden), (3 * hidden,), (3 * hidden,))
    return GruLayer(
        *(_uniform(part, shape, hidden) for part, shape in zip(jax.random.split(key, 4), shapes, strict=True))
    )


def _fresh_dense(key: jax.Array, inputs: int, outputs: int) -> Dense:
    kernel_key, bias_key = jax.random.split(key)
    return Dense(kernel=_uniform(kernel_key, (inputs, outputs), inputs), bias=_uniform(bias_key, (outputs,), inputs))


def _uniform(key: jax.Array, shape: tuple[int, ...], fan_in: int) -> jax.Array:
    bound = fan_in**-0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)
