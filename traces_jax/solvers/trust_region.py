"""The trust-region step: the natural gradient by conjugate gradients, and a line search.

Trust region policy optimization (Schulman et al., 2015).
"""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from traces_jax.config import Config, TrustRegionConfig
from traces_jax.core import distributions
from traces_jax.core.agent import Agent, Modules
from traces_jax.core.optimize import Number
from traces_jax.solvers.minibatches import Samples

_TINY = 1e-20
# Floats held for each sample, per unit of the widest layer: activations and their derivatives, forward and backward.
FLOATS_PER_UNIT = 12


@dataclasses.dataclass(frozen=True)
class Region:
    """The surroundings of a policy, in terms of its parameters as a vector [P].

    Attributes:
      center: [P] the policy's own parameters.
      ratio: [P] -> [N] density of the taken actions, relative to the center's.
      kl: [P] -> [] KL(center || other), mean over samples.
      fisher: [P] -> [P] product with the damped Fisher matrix.
      unravel: [P] -> parameters.
    """

    center: jax.Array
    ratio: Callable[[jax.Array], jax.Array]
    kl: Callable[[jax.Array], jax.Array]
    fisher: Callable[[jax.Array], jax.Array]
    unravel: Callable[[jax.Array], object]

    def mean(self, params: jax.Array, advantage: jax.Array) -> jax.Array:
        """The surrogate []: mean advantage [N] under other parameters [P]."""
        return jnp.mean(self.ratio(params) * advantage)


def around(modules: Modules, agent: Agent, samples: Samples, config: Config) -> Region:
    """The region around an agent's policy, on samples of it."""
    center, unravel = ravel_pytree(agent.actor.params)
    count, actions = samples.action.shape
    # The released programs average the KL over action dimensions as well, which allows that many times the distance.
    scale = 1.0 / actions if config.method.solver_version == "as_released" else 1.0

    def policy(params: jax.Array) -> tuple[jax.Array, jax.Array]:
        return modules.policy(unravel(params), samples.context)

    (mean, log_std), push = jax.linearize(policy, center)
    pull = jax.linear_transpose(push, center)

    def ratio(params: jax.Array) -> jax.Array:
        return jnp.exp(distributions.log_prob(*policy(params), samples.action) - samples.log_prob)

    def kl(params: jax.Array) -> jax.Array:
        return scale * jnp.mean(distributions.kl(mean, log_std, *policy(params)))

    def fisher(vector: jax.Array) -> jax.Array:
        # The Fisher matrix is J' M J: J the derivative of means and log deviations by the parameters, M the second
        # derivative of the KL by these, which is diagonal. At the center this is the KL's second derivative by the
        # parameters, at two thirds of the cost.
        mean_moves, log_std_moves = push(vector)
        weighed = (scale / count * mean_moves * jnp.exp(-2.0 * log_std), scale * 2.0 * log_std_moves)
        return pull(weighed)[0] + config.trust_region.damping * vector

    return Region(center=center, ratio=ratio, kl=kl, fisher=fisher, unravel=unravel)


@flax.struct.dataclass
class _Conjugate:
    index: jax.Array
    solution: jax.Array
    residual: jax.Array
    direction: jax.Array
    square: jax.Array


def solve(product: Callable[[jax.Array], jax.Array], target: jax.Array, steps: int) -> jax.Array:
    """The x [P] with product(x) = target [P], by conjugate gradients. product: with a positive definite matrix."""

    def step(now: _Conjugate) -> _Conjugate:
        image = product(now.direction)
        length = now.square / (now.direction @ image + _TINY)
        residual = now.residual - length * image
        square = residual @ residual
        return _Conjugate(
            index=now.index + 1,
            solution=now.solution + length * now.direction,
            residual=residual,
            direction=residual + square / (now.square + _TINY) * now.direction,
            square=square,
        )

    start = _Conjugate(
        index=jnp.zeros((), jnp.int32),
        solution=jnp.zeros_like(target),
        residual=target,
        direction=target,
        square=target @ target,
    )
    return lax.while_loop(lambda now: (now.index < steps) & (now.square > _TINY), step, start).solution


def longest(direction: jax.Array, fisher: Callable[[jax.Array], jax.Array], target_kl: Number) -> jax.Array:
    """The multiple [P] of a direction [P] at which the KL, to second order, is the target."""
    return jnp.sqrt(2.0 * target_kl / (direction @ fisher(direction) + _TINY)) * direction


@flax.struct.dataclass
class _Search:
    index: jax.Array
    share: jax.Array
    found: jax.Array


def search(
    center: jax.Array, step: jax.Array, accept: Callable[[jax.Array], jax.Array], *, tries: int, shrink: Number
) -> tuple[jax.Array, jax.Array]:
    """The first of center + step, center + shrink step, ... that is accepted; the center if none of `tries` is.

    accept: [P] -> [] bool. Returns the parameters [P] and the share [] of the step that was taken.
    """

    def attempt(now: _Search) -> _Search:
        found = accept(center + now.share * step)
        return _Search(index=now.index + 1, share=jnp.where(found, now.share, shrink * now.share), found=found)

    start = _Search(index=jnp.zeros((), jnp.int32), share=jnp.ones(()), found=jnp.zeros((), bool))
    end = lax.while_loop(lambda now: (now.index < tries) & ~now.found, attempt, start)
    share = jnp.where(end.found, end.share, 0.0)
    # A step that is not finite is not accepted, and zero times it is not zero.
    return jnp.where(end.found, center + share * step, center), share


def improve(
    region: Region, advantage: jax.Array, settings: TrustRegionConfig
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """TRPO's step: the highest surrogate within the target KL. advantage: [N]. Returns parameters [P] and scalars."""
    start, gradient = jax.value_and_grad(region.mean)(region.center, advantage)
    direction = solve(region.fisher, gradient, settings.conjugate_steps)

    def accept(params: jax.Array) -> jax.Array:
        # A comparison with NaN is false.
        return (region.mean(params, advantage) >= start) & (region.kl(params) <= settings.target_kl)

    params, share = search(
        region.center,
        longest(direction, region.fisher, settings.target_kl),
        accept,
        tries=settings.tries,
        shrink=settings.shrink,
    )
    return params, report(region, params, share)


def report(region: Region, params: jax.Array, share: jax.Array) -> dict[str, jax.Array]:
    """Scalars of a step to `params` [P]: its KL, and the share [] of it that the line search left."""
    return {"trust_region/kl": region.kl(params), "trust_region/share": share}
