"""Every setting: its default, its allowed values, and what it does.

`Config` is a frozen dataclass and also a JAX pytree. The core reads `config.ppo.clip` the same way whether it is a
number or a traced array.
"""

import dataclasses
import math
import typing

from traces_jax.config.fields import (
    MOST_LANES,
    MOST_LAYERS,
    MOST_STEPS,
    MOST_UNITS,
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

# Cost sources of this package.
SOURCES = ("traces", "ct", "rlsf", "oracle")


@settings
class EnvironmentConfig:
    """The environments of one seed."""

    # Environments of each seed.
    count: int = whole(20)
    # Steps of each environment in one iteration, that is between two policy updates.
    steps: int = whole(1000)
    # Reset all environments at the start of each iteration, as the paper does. If false, episodes continue across
    # iterations.
    reset_each_iteration: bool = switch(True)
    # End the episode when the robot falls, as the original Gymnasium tasks do. The paper continues the episode.
    terminate_when_unhealthy: bool = switch(False)


@settings
class PolicyConfig:
    """The Gaussian actor."""

    hidden: tuple[int, ...] = layers((64, 64))
    activation: str = choice("relu", "relu", "tanh")
    # "tanh" bounds the mean action. "free" does not: the mean may drift past the actuator range, where the gradient
    # vanishes.
    mean: str = choice("tanh", "tanh", "free")
    initial_log_std: float = static(0.0, "a number from -5 to 2", lambda value: -5 <= value <= 2)
    # Added to the learned standard deviation, so that some noise remains: without it a discontinuous cost has no slope.
    min_std: float = static(0.05, "a number from 0 to 1", lambda value: 0 <= value <= 1)


@settings
class CriticConfig:
    """The reward critic and the cost critic."""

    hidden: tuple[int, ...] = layers((64, 64))
    activation: str = choice("relu", "relu", "tanh")


@settings
class NormalizeConfig:
    """What is normalized with running statistics."""

    observations: bool = switch(True)
    rewards: bool = switch(True)
    # "recent": divide cost advantages by their standard deviation over the last iterations, so that the multiplier
    # means the same on every task and at every time of a run. "learned": divide the costs of an estimator by their
    # standard deviation since the start, cut at 5 of them, but not the true cost. "always": both.
    costs: str = choice("recent", "recent", "learned", "always", "never")
    # Standardize the mix of reward and cost advantages: the multiplier then does not change the size of the step.
    mixed: bool = switch(True)


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
    cost_critic_l2: float = nonnegative(1e-3)


@settings
class LagrangeConfig:
    """The multiplier of the cost constraint."""

    # "controlled": a proportional-integral controller of the multiplier's logarithm, which suits any scale of the cost.
    # "adam": gradient ascent with Adam, as in the paper.
    rule: str = choice("controlled", "controlled", "adam")
    initial: float = nonnegative(1.0)
    # Upper bound of the multiplier. Without it, a constraint that cannot be met would raise the multiplier until the
    # reward no longer matters. Under the rule "controlled" its inverse is the lower bound.
    maximum: float = positive(20.0)
    # Change of the logarithm in an iteration, at a full violation (see `Verdict.tolerance`).
    integral: float = nonnegative(0.05)
    # A full violation multiplies the multiplier in force by exp(proportional) at once.
    proportional: float = nonnegative(1.0)
    # Learning rate of the rule "adam".
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
class EstimatorConfig:
    """The network that estimates each step's contribution (credit) to a violation."""

    # Units of each GRU layer.
    hidden: int = whole(4, most=MOST_UNITS)
    # GRU layers.
    depth: int = whole(2, most=MOST_LAYERS)
    decoder: tuple[int, ...] = layers((64, 64), least=1)
    # "summary": the decoder reads only the GRU's hidden states, as released. These few units must first learn to pass
    # on what matters. "step": the decoder also reads the observation and the action.
    decoder_reads: str = choice("step", "step", "summary")
    # Lower bound of the log credits; the upper bound is 0.
    clamp: float = traced(-7.0, "a number below 0", lambda value: value < 0)
    # Normalize observations with the policy's statistics, and clip actions to +-action_clip.
    normalize_inputs: bool = switch(True)
    action_clip: float = positive(3.0)
    # Probability of an acceptable trajectory that a new estimator predicts.
    initial_probability: float = static(0.95, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Standard deviation of the initial weights of the credit output. If credits differ between steps from the start,
    # the estimator learns sooner to tell steps apart.
    initial_spread: float = static(0.6, "a number above 0 and at most 10", lambda value: 0 < value <= 10)
    # Cost of a step: mean of the clamped credit, mean of the unclamped credit (as released), or a sample.
    cost: str = choice("clamped_mean", "clamped_mean", "mean", "sample")
    # A new estimator starts with units that remember for long (see `network.with_memory`).
    memory: bool = switch(True)
    # Initial estimator: "none" (random), a folder of `pretrain`, a run folder, or a PyTorch state dict (.pt).
    init: str = static(
        "none",
        "none, a folder of pretrain or of a run, or a .pt file",
        lambda value: isinstance(value, str) and value != "",
    )


@settings
class CTConfig:
    """The source "ct": the cost of a step and the threshold of their sum, both learned."""

    # Hidden layers of the network that outputs the logarithm of a step's cost.
    hidden: tuple[int, ...] = layers((64, 64), least=1)
    # Logarithm of the threshold that a new model starts with.
    initial_log_threshold: float = static(1.0, "a number from -5 to 10", lambda value: -5 <= value <= 10)
    # Normalize observations with the policy's statistics. The original reads them as they are.
    normalize_inputs: bool = switch(False)


@settings
class RLSFConfig:
    """The source "rlsf": a classifier of states, learned from labels of segments of novel trajectories."""

    # Hidden layers of the classifier.
    hidden: tuple[int, ...] = layers((64, 64), least=1)
    # Whether the classifier reads the action too.
    reads_action: bool = switch(False)
    # Normalize observations with the policy's statistics. The original reads them as they are.
    normalize_inputs: bool = switch(False)
    # Steps of a labelled segment, a divisor of the episode's; 0 for the whole trajectory.
    segment: int = whole(0, low=0)
    # A segment shorter than the trajectory is bad above this summed true cost.
    segment_limit: float = nonnegative(0.0)
    # A step costs 1 if its state is bad with more than this probability, otherwise 0.
    bad_above: float = traced(0.5, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Bits of the hash of a state. A trajectory is novel if the hash of one of its states is new.
    bits: int = whole(15, most=24)
    # The mean summed cost of an episode is constrained to this.
    alpha: float = nonnegative(0.1)


@settings
class LabelsConfig:
    """The labeler: a person or a monitor, simulated here from the true cost."""

    # Steps between labelled prefixes of a trajectory.
    interval: int = whole(20)
    # Label full trajectories only, no prefixes.
    terminal_only: bool = switch(False)
    # Probability that a label is flipped.
    noise: float = fraction(0.0)
    # Label of a trajectory that terminated early: always "violating", or "by_cost" like any other.
    early_end: str = choice("violating", "violating", "by_cost")


@settings
class QueryConfig:
    """Which trajectories are labelled."""

    # Fraction of all trajectories that are labelled.
    fraction: float = static(0.13, "a number from 1e-6 to 1", lambda value: 1e-6 <= value <= 1)
    # Trajectories labelled in one query. Candidates are pooled until this many are due. Small, frequent queries keep
    # the estimator up to date with the policy.
    batch: int = whole(1)
    # "cv": the trajectories whose summed cost has the highest coefficient of variation. "random": any.
    rule: str = choice("cv", "cv", "random")
    # Fraction of the queried trajectories drawn at random when the rule is "cv". The coefficient of variation is high
    # where costs are small, so "cv" prefers trajectories that look safe. An estimator trained on few others becomes
    # optimistic, and the policy exploits that.
    random_share: float = static(0.5, "a number from 0 to 1", lambda value: 0 <= value <= 1)
    # Trajectories with a lower coefficient of variation are not labelled.
    min_cv: float = nonnegative(0.0)
    # Maximum number of labelled trajectories for each seed; 0 for no limit.
    budget: int = whole(0, low=0)


@settings
class RefitConfig:
    """Refitting the estimator after each query."""

    # Maximum number of passes.
    passes: int = whole(4)
    # Gradient steps in a pass. target_accuracy is checked after each pass.
    steps: int = whole(2)
    # New trajectories in a gradient step.
    new_batch: int = whole(2)
    # Trajectories from the store in a gradient step.
    stored_batch: int = whole(14)
    # Capacity of the store of labelled trajectories. The oldest are replaced first.
    store: int = whole(1024)
    lr: float = positive(3e-3)
    weight_decay: float = nonnegative(1e-4)
    max_grad_norm: float = positive(1.0)
    # A refit stops at this accuracy on the new labels.
    target_accuracy: float = fraction(0.975)


@settings
class PretrainConfig:
    """Fitting the estimator to recorded trajectories before a run."""

    # Maximum number of gradient steps. Costs of speed need some hundreds, costs of position on a circle thousands.
    # 0 trains nothing and prints the accuracy of the estimator given by estimator.init.
    steps: int = whole(4000, low=0)
    # Trajectories in a gradient step.
    batch: int = whole(32)
    # Initial learning rate; it decays linearly to a tenth.
    lr: float = static(3e-3, "a number above 0", lambda value: 0 < value < math.inf, most=1e9)
    # Much higher than in a refit: the data are fixed, and an estimator that reads the step overfits their noise.
    weight_decay: float = static(0.3, "a finite number of at least 0", lambda value: 0 <= value < math.inf, most=1e9)
    # Gradient steps between two evaluations on the validation trajectories.
    every: int = whole(50)
    # Training stops at this accuracy on the prefixes of the validation trajectories.
    target_accuracy: float = static(0.97, "a number from 0 to 1", lambda value: 0 <= value <= 1)
    # Fraction of the trajectories held out as test set. The same fraction of the rest is the validation set, which
    # decides when to stop and which weights to keep.
    test_share: float = static(0.1, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Megabytes of trajectories in memory at a time. The file may be larger.
    memory: int = whole(256)


@settings
class ConstraintConfig:
    """The constraint on the policy."""

    # A trajectory is acceptable up to this summed true cost. The source "oracle" constrains the mean summed cost to it.
    # With a learned cost only the labeler uses it.
    cost_limit: float = nonnegative(25.0)
    # "probability": the mean estimated probability of an acceptable trajectory must be at least d (as released).
    # "jensen": the mean summed cost must be at most -log d (as in the paper), which is sufficient for the former.
    form: str = choice("probability", "probability", "jensen")
    # Cost of a step, from its credit: "tempered" is the increase of log(1 + summed credit), see `credit.tempered`;
    # "plain" is the credit.
    shape: str = choice("tempered", "tempered", "plain")
    # Required probability of an acceptable trajectory.
    d: float = traced(0.9, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Which policy must satisfy the constraint: "mean" takes the mean action, as evaluation does; "noisy" explores, as
    # in the paper; "both" means each of them.
    policy: str = choice("both", "both", "mean", "noisy")
    # Share of the environments that play the mean action: measured, perhaps labelled, not used for the policy update.
    share: float = static(0.2, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Number of random picks whose labels correct the measured probability. 0 for no correction.
    correction: int = whole(32, low=0)
    # Deploy the newest policy that satisfied the constraint in training. If false: the last policy.
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
    # Episodes of each seed in the evaluation at the end of a run.
    evaluation_episodes: int = whole(100, low=0)
    # How many of them are labelled, in addition to those of the run, to certify a policy. 0 for no certificate.
    certificate: int = whole(60, low=0)


@settings
class Config:
    """Everything that defines a run."""

    # A named group of settings, see `PRESETS`.
    preset: str = choice("ours", "ours", "paper")
    # A task of this package, or "module:Class" for your own.
    task: str = static("SafetyAntVelocity-v1", "the name of a task", lambda value: True)
    physics: str = choice("auto", "auto", "native", "mjx")
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
