"""Every setting: its default, its allowed values, and what it does.

`Config` is a frozen dataclass and also a JAX pytree. The core reads `config.ppo.clip` the same way whether it is a
number or a traced array.
"""

import dataclasses
import typing

from traces_jax.config.feedback_schema import LabelsConfig, PoolConfig, QueryConfig
from traces_jax.config.fields import (
    MOST_LANES,
    MOST_STEPS,
    choice,
    choice_or_own,
    fraction,
    layers,
    multiples,
    nonnegative,
    positive,
    settings,
    static,
    switch,
    traced,
    whole,
)
from traces_jax.config.solver_schema import (
    SOLVERS,
    CPOConfig,
    CUPConfig,
    FOCOPSConfig,
    P3OConfig,
    PIDConfig,
    SauteConfig,
    TrustRegionConfig,
)
from traces_jax.config.source_schema import (
    SOURCES,
    CTConfig,
    EstimatorConfig,
    PretrainConfig,
    RefitConfig,
    RLSFConfig,
)


@settings
class EnvironmentConfig:
    """The environments of one seed."""

    # Environments of each seed.
    count: int = whole(20)
    # Steps of each environment in one iteration, that is between two policy updates.
    steps: int = whole(1000)
    # Reset all environments at the start of each iteration, as the paper does. If false, episodes continue across
    # iterations, and `steps` may be any number (docs/accelerators.md).
    reset_each_iteration: bool = switch(True)
    # End the episode when the robot falls, as the original Gymnasium tasks do. The paper continues the episode.
    terminate_when_unhealthy: bool = switch(False)


@settings
class PolicyConfig:
    """The Gaussian actor."""

    hidden: tuple[int, ...] = layers((64, 64))
    activation: str = choice("relu", "relu", "tanh")
    # "tanh" bounds the mean action. With "free" it may drift past the actuator range, where the gradient vanishes.
    mean: str = choice("tanh", "tanh", "free")
    initial_log_std: float = static(0.0, "a number from -5 to 2", lambda value: -5 <= value <= 2)
    # Added to the learned standard deviation, so that some noise remains: without it a discontinuous cost has no slope.
    min_std: float = static(0.05, "a number from 0 to 1", lambda value: 0 <= value <= 1)
    # Bound of the learned standard deviation at the end of a run, as a fraction of the initial one. The bound falls
    # geometrically, so that the noisy policy that learns becomes the mean action that is deployed. 1: no bound.
    final_noise: float = traced(1.0, "a number above 0 and at most 1", lambda value: 0 < value <= 1)


@settings
class CriticConfig:
    """The reward critic and the cost critic."""

    hidden: tuple[int, ...] = layers((64, 64))
    activation: str = choice("relu", "relu", "tanh")


@settings
class NormalizeConfig:
    """What is normalized, and by which statistics."""

    observations: bool = switch(True)
    rewards: bool = switch(True)
    # "iteration": divide learned costs by their standard deviation in this iteration, so that the multiplier means the
    # same on every task and at every time of a run. "learned": divide them by their standard deviation since the start,
    # cut at 5 of them. "always": the same for the true cost, which is left as it is otherwise.
    costs: str = choice("iteration", "iteration", "learned", "always", "never")


@settings
class PPOConfig:
    """The policy update."""

    passes: int = whole(40)
    minibatch: int = whole(100)
    actor_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    # Decay the actor's learning rate linearly to zero over the run.
    actor_lr_decay: bool = switch(True)
    clip: float = positive(0.2)
    target_kl: float = positive(0.02)
    entropy: float = nonnegative(0.01)
    gamma: float = fraction(0.99)
    gae_lambda: float = fraction(0.95)
    cost_gae_lambda: float = fraction(0.95)
    max_grad_norm: float = positive(0.5)
    reward_critic_l2: float = nonnegative(1e-3)
    # While nothing costs yet, a penalty is the only gradient, and Adam takes whole steps of it until all
    # weights are zero. From there a network learns nothing.
    cost_critic_l2: float = nonnegative(0.0)


@settings
class LagrangeConfig:
    """The multiplier of the cost constraint."""

    initial: float = nonnegative(1.0)
    # Upper bound of the multiplier. Without it, a constraint that cannot be met would raise the multiplier until the
    # reward no longer matters.
    maximum: float = positive(5.0)
    # A violation by the whole limit adds this to the multiplier in force at once, which damps its swings.
    proportional: float = nonnegative(1.0)
    # Learning rate of gradient ascent with Adam.
    lr: float = positive(0.035)
    # Number of finished episodes over which the constraint is averaged.
    window: int = whole(50)


@settings
class MethodConfig:
    """Where the cost comes from, when it is learned, and how the policy is updated under it."""

    # "traces", "ct", "rlsf": learn the cost from labels of trajectories. "oracle": use the true cost and its limit. Or
    # "module:Class" for your own, see docs/sources.md.
    source: str = choice_or_own("traces", *SOURCES)
    # The constrained policy update, see docs/solvers.md; or "module:Class" for your own.
    solver: str = choice_or_own("ppo_lag", *SOLVERS)
    # Where a solver's paper and its widely used program (OmniSafe) differ: "as_published" or "as_released".
    solver_version: str = choice("as_published", "as_published", "as_released")
    # "paper": refit the estimator before computing this iteration's credits. "released": after, as the authors' code.
    order: str = choice("paper", "paper", "released")


@settings
class ConstraintConfig:
    """The constraint on the policy."""

    # A trajectory is acceptable up to this summed true cost. The source "oracle" constrains the mean summed cost to it.
    # With a learned cost only the labeler uses it.
    cost_limit: float = nonnegative(25.0)
    # "probability": the mean estimated probability of an acceptable trajectory must be at least d (as released).
    # "jensen": the mean summed cost must be at most -log d (as in the paper), which is sufficient for the former.
    form: str = choice("probability", "probability", "jensen")
    # Whether a learned cost is expected to go on after an episode that its horizon cut off, as released. A label is of
    # the episode alone.
    beyond_horizon: bool = switch(False)
    # Required probability of an acceptable trajectory.
    d: float = traced(0.9, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # The same at the start of a run; it rises to d, and is never above it. A policy that is held inside the limit
    # before it has learned to move learns little, and labels tell most where some are accepted and some are not. The
    # policy to deploy is held to d all the time. 1: so is the one that learns.
    initial_d: float = traced(0.5, "a number above 0 and at most 1", lambda value: 0 < value <= 1)
    # Fraction of the run after which d is reached. The rise is linear.
    ramp: float = traced(0.6, "a number above 0 and at most 1", lambda value: 0 < value <= 1)
    # Which policy must satisfy the constraint: "mean" takes the mean action, as evaluation does; "noisy" explores, as
    # in the paper; "both": the noisy one, and more and more also the mean action, at the end the worse of the two.
    policy: str = choice("both", "both", "mean", "noisy")
    # Share of the environments that play the mean action: measured, perhaps labelled, not used for the policy update.
    share: float = static(0.2, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Labels of random picks correct the measured probability: older ones fade, so that at most this many count for
    # each policy. 0 for no correction.
    correction: int = whole(16, low=0)
    # Deploy the newest policy that satisfied the constraint in training with a margin. If false: the last policy.
    keep: bool = switch(True)


@settings
class CollectConfig:
    """The behaviour policies whose episodes `collect` writes to a file of offline data.

    They are trained with the true cost, one without a limit and one for each of `limits`. Episodes are recorded at
    several moments of training, with each level of noise. This gives a mix of returns and costs.
    """

    # Environment steps to train each policy. Enough for the one without a limit to violate it often.
    steps: int = whole(1_000_000, most=MOST_STEPS)
    # Limits, as multiples of constraint.cost_limit. Episodes just below and just above it are the most informative.
    limits: tuple[float, ...] = multiples((0.5, 1.0, 2.0))
    # Number of recordings: the first before training (a random policy), the others evenly spaced until its end.
    moments: int = whole(8, low=2)
    # Multiples of the policy's own noise. With 0 episodes are alike, above 1 the policy makes mistakes.
    noise: tuple[float, ...] = multiples((0.0, 1.0, 2.0))


@settings
class RunConfig:
    """Logging, checkpoints and evaluation."""

    # Iterations in one call of the compiled program. More means less host overhead and less frequent output.
    chunk: int = whole(1)
    # Iterations between checkpoints.
    checkpoint_every: int = whole(10)
    # Number of checkpoints to keep.
    keep: int = whole(3, low=2)
    tensorboard: bool = switch(True)
    # Where rows go besides metrics.jsonl and TensorBoard: "wandb" (Weights & Biases), or "module:Class" for your own.
    sink: str = choice_or_own("none", "none", "wandb")
    # Episodes of each seed in the evaluation at the end of a run.
    evaluation_episodes: int = whole(100, low=0)
    # How many of them are labelled, in addition to those of the run, to certify a policy. 0 for no certificate.
    certificate: int = whole(60, low=0)


@settings
class MjxConfig:
    """How MJX computes; see docs/accelerators.md."""

    # "jax": on any device. "warp": kernels of MuJoCo Warp, for NVIDIA GPUs; needs the package warp-lang.
    impl: str = choice("jax", "jax", "warp")


@settings
class Config:
    """Everything that defines a run."""

    # A named group of settings, see `PRESETS`.
    preset: str = choice("ours", "ours", "paper", "accelerator")
    # A task of this package, or "module:Class" for your own.
    task: str = static("SafetyAntVelocity-v1", "the name of a task", lambda value: True)
    physics: str = choice("auto", "auto", "native", "mjx")
    mjx: MjxConfig = MjxConfig()
    # Environment steps of each seed.
    steps: int = whole(10_000_000, most=MOST_STEPS)
    # The first seed.
    seed: int = whole(0, low=0, most=2**32 - 1)
    # The number of seeds: seed, seed + 1, ...
    seeds: int = whole(1, most=MOST_LANES)
    # Values to train in parallel, for example "ppo.actor_lr=1e-4,3e-4; ppo.clip=0.1,0.2".
    sweep: str = static("", "text such as 'ppo.actor_lr=1e-4,3e-4'", lambda value: isinstance(value, str))
    environment: EnvironmentConfig = EnvironmentConfig()
    policy: PolicyConfig = PolicyConfig()
    critic: CriticConfig = CriticConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    ppo: PPOConfig = PPOConfig()
    lagrange: LagrangeConfig = LagrangeConfig()
    pid: PIDConfig = PIDConfig()
    cup: CUPConfig = CUPConfig()
    focops: FOCOPSConfig = FOCOPSConfig()
    p3o: P3OConfig = P3OConfig()
    trust_region: TrustRegionConfig = TrustRegionConfig()
    cpo: CPOConfig = CPOConfig()
    saute: SauteConfig = SauteConfig()
    method: MethodConfig = MethodConfig()
    estimator: EstimatorConfig = EstimatorConfig()
    ct: CTConfig = CTConfig()
    rlsf: RLSFConfig = RLSFConfig()
    labels: LabelsConfig = LabelsConfig()
    pool: PoolConfig = PoolConfig()
    query: QueryConfig = QueryConfig()
    refit: RefitConfig = RefitConfig()
    pretrain: PretrainConfig = PretrainConfig()
    constraint: ConstraintConfig = ConstraintConfig()
    run: RunConfig = RunConfig()
    collect: CollectConfig = CollectConfig()

    @property
    def iteration_steps(self) -> int:
        """Environment steps of one seed in one iteration."""
        return self.environment.count * self.environment.steps

    @property
    def spans(self) -> bool:
        """Whether episodes continue across iterations."""
        return not self.environment.reset_each_iteration

    @property
    def mean_environments(self) -> int:
        """Environments that play the mean action: the first ones. At least one, and at least one explores."""
        if self.constraint.policy == "noisy":
            return 0
        return min(max(1, round(self.constraint.share * self.environment.count)), self.environment.count - 1)

    @property
    def mean_window(self) -> int:
        """Episodes of the mean action over which the constraint is averaged: as many iterations as of the others."""
        return max(1, round(self.constraint.share * self.lagrange.window)) if self.mean_environments else 1

    @property
    def samples(self) -> int:
        """Steps of one iteration that the policy update uses."""
        return (self.environment.count - self.mean_environments) * self.environment.steps

    @property
    def iterations(self) -> int:
        """Iterations of the whole run."""
        return self.steps // self.iteration_steps


def all_fields(cls: type = Config, path: str = "") -> dict[str, dataclasses.Field]:
    """Every field that holds a value, by its dotted path."""
    found: dict[str, dataclasses.Field] = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.type):
            found |= all_fields(typing.cast(type, field.type), f"{path}{field.name}.")
        else:
            found[path + field.name] = field
    return found
