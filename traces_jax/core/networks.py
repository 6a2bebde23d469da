"""Actor and critics. Weights and biases are initialized as PyTorch's linear layers: uniform in +-1 / sqrt(fan in)."""

import itertools
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": nn.relu, "tanh": jnp.tanh}


class MLP(nn.Module):
    """[..., inputs] -> [..., outputs]."""

    hidden: tuple[int, ...]
    outputs: int
    activation: str
    # Whether a layer norm follows each activation.
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for index, width in enumerate((*self.hidden, self.outputs)):
            bound = x.shape[-1] ** -0.5
            x = nn.Dense(
                width,
                kernel_init=nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"),
                bias_init=lambda key, shape, dtype, bound=bound: jax.random.uniform(key, shape, dtype, -bound, bound),
            )(x)
            if index < len(self.hidden):
                x = _ACTIVATIONS[self.activation](x)
                if self.layer_norm:
                    x = nn.LayerNorm(epsilon=1e-5, use_fast_variance=False)(x)
        return x


class GaussianActor(nn.Module):
    """Mean [..., A] from the observation [..., O], and a log standard deviation [A] that does not depend on it."""

    hidden: tuple[int, ...]
    actions: int
    activation: str
    mean: str
    initial_log_std: float
    min_std: float

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = MLP(self.hidden, self.actions, self.activation)(observation)
        if self.mean == "tanh":
            mean = jnp.tanh(mean)
        log_std = self.param("log_std", nn.initializers.constant(self.initial_log_std), (self.actions,))
        if self.min_std > 0:
            # std = learned + min_std. A hard bound would have no gradient once the learned value is below it.
            log_std = jnp.logaddexp(log_std, jnp.log(self.min_std))
        return mean, log_std


class Critic(nn.Module):
    """Value [...] of the observation [..., O]."""

    hidden: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        return MLP(self.hidden, 1, self.activation)(observation)[..., 0]


def weights(inputs: int, hidden: Sequence[int], outputs: int) -> int:
    """Number of parameters of an MLP."""
    widths = (inputs, *hidden, outputs)
    return sum((below + 1) * above for below, above in itertools.pairwise(widths))
