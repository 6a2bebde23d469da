"""Corrects estimated probabilities by labels of trajectories that were picked at random (prediction-powered inference).

Labels are most needed where there are few episodes: those of the mean action, which is what is deployed. So half of the
random picks are drawn from them, and each policy is corrected by its own.
"""

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax

# With this many labels of random picks, half of their mean residual is believed.
_FEW = 16.0


@flax.struct.dataclass
class Residuals:
    """Labels minus estimated probabilities of random picks, averaged with weights that fade with every further pick.

    Attributes:
      total: [2] weighted sum, of episodes of the policy that explores and of its mean action.
      weight: [2] sum of the weights.
    """

    total: jax.Array
    weight: jax.Array


def add_residuals(
    residuals: Residuals, values: jax.Array, known: jax.Array, plays_mean: jax.Array, *, memory: float
) -> Residuals:
    """Adds picks in their order. values, known, plays_mean: [K]; memory: picks of a policy that count at most."""

    def add(before: Residuals, pick: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Residuals, None]:
        value, counts, mean = pick
        of = counts & (jnp.arange(2) == mean)
        fade = 1.0 - 1.0 / memory
        return Residuals(
            total=jnp.where(of, fade * before.total + value, before.total),
            weight=jnp.where(of, fade * before.weight + 1.0, before.weight),
        ), None

    return lax.scan(add, residuals, (values, known, plays_mean.astype(jnp.int32)))[0]


def no_residuals() -> Residuals:
    """Nothing labelled yet."""
    return Residuals(total=jnp.zeros(2), weight=jnp.zeros(2))


def bias(residuals: Residuals) -> jax.Array:
    """How much more often episodes are accepted than estimated, [2]; shrunk towards zero while there are few labels."""
    return residuals.total / (residuals.weight + _FEW)


def chance(key: jax.Array, plays_mean: jax.Array, *, share: float) -> jax.Array:
    """Scores [N] in [0, 1): the highest are a draw at random, half of it from episodes of the mean action.

    A root of a uniform number is a weighted draw without replacement (Efraimidis and Spirakis, 2006). plays_mean: [N];
    share: of the environments that play the mean action, 0 for a draw in which all are alike. key: consumed.
    """
    uniform = jax.random.uniform(key, plays_mean.shape)
    return jnp.where(plays_mean, uniform ** (share / (1.0 - share)), uniform) if share else uniform
