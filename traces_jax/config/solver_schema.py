"""Settings of single solvers, a group each. What several solvers share is in `schema`: `ppo`, `lagrange`."""

from traces_jax.config.fields import fraction, nonnegative, positive, settings, traced, whole

# method.solver of this package; see docs/solvers.md.
SOLVERS = (
    "ppo_lag", "cppo_pid", "cup", "focops", "p3o", "trpo_lag", "cpo", "trpo_saute", "ppo_saute", "ppo", "trpo",
)  # fmt: skip


@settings
class PIDConfig:
    """The multiplier of CPPO-PID, a controller. Its integral starts at lagrange.initial.

    Gains apply to the violation in units of the limit. The published ones (0.1, 0.01, 0.01) apply to the violation
    itself, with a limit of 25: the same numbers there, and usable where a limit is a probability.
    """

    proportional: float = nonnegative(2.5)
    integral: float = nonnegative(0.25)
    derivative: float = nonnegative(0.25)
    # Weight of the past in the moving averages of the proportional and of the derivative term.
    proportional_smoothing: float = fraction(0.95)
    derivative_smoothing: float = fraction(0.95)
    # The derivative is the rise over this many iterations.
    delay: int = whole(10)


@settings
class CUPConfig:
    """CUP: its projection, and the bound of its multiplier."""

    # Upper bound of the multiplier, instead of lagrange.maximum.
    maximum: float = positive(2.0)
    # Both the improvement and the projection stop when they have moved the policy this far; instead of ppo.target_kl.
    target_kl: float = positive(0.01)
    # Of the projection, instead of ppo.max_grad_norm. Its gradient grows with the multiplier; under a tight bound the
    # multiplier would have no effect.
    max_grad_norm: float = positive(40.0)


@settings
class FOCOPSConfig:
    """FOCOPS: the trust region of its loss, and the bound of its multiplier."""

    # Upper bound of the multiplier, instead of lagrange.maximum.
    maximum: float = positive(2.0)
    # Lambda of the paper: a lower temperature follows the advantages further.
    temperature: float = positive(1.5)
    # Delta of the paper: states whose policy has moved further are left out.
    trust: float = positive(0.02)


@settings
class P3OConfig:
    """P3O: its exact penalty."""

    # Weight of the penalty.
    kappa: float = nonnegative(20.0)


@settings
class TrustRegionConfig:
    """The step of TRPO and CPO, and the fit of their critics."""

    target_kl: float = positive(0.01)
    # Iterations of the conjugate gradient.
    conjugate_steps: int = whole(15)
    # Added to the diagonal of the Fisher matrix.
    damping: float = nonnegative(0.1)
    # Maximum number of step sizes tried, and the factor from each to the next.
    tries: int = whole(15)
    shrink: float = traced(0.8, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Passes over the samples in which the critics are fitted, instead of ppo.passes, and their learning rate, instead
    # of ppo.critic_lr. The policy takes one step only.
    critic_passes: int = whole(10)
    critic_lr: float = positive(1e-3)


@settings
class CPOConfig:
    """CPO: its line search must also satisfy the constraint, so it may have to go further."""

    # Instead of trust_region.tries.
    tries: int = whole(20)


@settings
class SauteConfig:
    """Saute: the remaining budget as an observation."""

    # Discount of the budget.
    gamma: float = traced(0.999, "a number above 0 and at most 1", lambda value: 0 < value <= 1)
    # Reward of every step after the budget is spent.
    unsafe_reward: float = traced(-1.0, "a finite number of at most 0", lambda value: value <= 0)
