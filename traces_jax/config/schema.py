"""Every setting: its default, what it may be, and what it does.

`Config` is a frozen dataclass and at the same time a JAX pytree. The core reads `config.ppo.clip` and never asks
whether that is a number or a traced array.
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


@settings
class EnvironmentConfig:
    """The environments of one seed and how long they run between updates."""

    count: int = whole(20)
    # Steps of each environment in one iteration.
    steps: int = whole(1000)
    # The paper restarts every environment at each iteration; without it episodes run on across iterations.
    reset_each_iteration: bool = switch(True)
    # The paper lets fallen robots go on; the original Gymnasium tasks end the episode.
    terminate_when_unhealthy: bool = switch(False)


@settings
class PolicyConfig:
    """The Gaussian actor."""

    hidden: tuple[int, ...] = layers((64, 64))
    activation: str = choice("relu", "relu", "tanh")
    # "tanh" bounds the mean; "free" lets it drift beyond the actuators, where the gradient is lost.
    mean: str = choice("tanh", "tanh", "free")
    initial_log_std: float = static(0.0, "a number from -5 to 2", lambda value: -5 <= value <= 2)
    # Standard deviation that is left when all that is learned is gone. Without noise a cost that jumps has no slope.
    min_std: float = static(0.0, "a number from 0 to 1", lambda value: 0 <= value <= 1)


@settings
class CriticConfig:
    """The reward critic and the cost critic."""

    hidden: tuple[int, ...] = layers((64, 64))
    activation: str = choice("relu", "relu", "tanh")


@settings
class NormalizeConfig:
    """Running statistics."""

    observations: bool = switch(True)
    rewards: bool = switch(True)
    # "learned": only costs that an estimator makes, whose size means nothing; the true cost keeps its own.
    costs: str = choice("learned", "learned", "always", "never")


@settings
class PPOConfig:
    """The policy update."""

    passes: int = whole(40)
    minibatch: int = whole(100)
    actor_lr: float = positive(3e-4)
    critic_lr: float = positive(3e-4)
    # Whether the actor's rate falls linearly to zero over the run.
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

    initial: float = nonnegative(1e-3)
    lr: float = positive(0.035)
    # A measure that cannot be brought to its limit would let the multiplier grow until no reward counts any more.
    maximum: float = positive(5.0)
    # How far a violation as large as the limit moves the multiplier at once; 0 for the multiplier of the paper.
    proportional: float = nonnegative(1.0)
    # Finished episodes over which the cost is averaged.
    window: int = whole(50)


@settings
class MethodConfig:
    """Where the cost comes from, and in which order it is learned."""

    # "traces" learns it from labels of trajectories, "oracle" is given the true one and its limit.
    source: str = choice("traces", "traces", "oracle")
    # "paper" refits the estimator before this iteration's credits are computed, "released" after.
    order: str = choice("paper", "paper", "released")


@settings
class EstimatorConfig:
    """The network that gives each step its share of a violation."""

    hidden: int = whole(4, most=MOST_UNITS)
    # GRU layers.
    depth: int = whole(2, most=MOST_LAYERS)
    decoder: tuple[int, ...] = layers((64, 64), least=1)
    # "summary": the decoder sees a step only through the GRU's few units, which must first learn to let through what
    # matters (as released); "step": it reads the observation and the action as well.
    decoder_reads: str = choice("step", "step", "summary")
    # Log credits lie between this and 0.
    clamp: float = traced(-7.0, "a number below 0", lambda value: value < 0)
    # Whether it reads observations scaled by the policy's statistics, and actions held within action_clip.
    normalize_inputs: bool = switch(True)
    action_clip: float = positive(3.0)
    # What a fresh estimator takes the probability of an acceptable trajectory to be.
    initial_probability: float = static(0.95, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Deviation of the weights that give a step its credit. Steps that differ from the start are told apart sooner.
    initial_spread: float = static(0.6, "a number above 0 and at most 10", lambda value: 0 < value <= 10)
    # The cost of a step: mean of the clamped credit, mean of the credit without clamp (as released), or a sample.
    cost: str = choice("clamped_mean", "clamped_mean", "mean", "sample")
    # What a run starts from: nothing, the folder of `pretrain` or of a run, or a state dict saved by PyTorch (.pt).
    init: str = static(
        "none",
        "none, a folder of pretrain or of a run, or a .pt file",
        lambda value: isinstance(value, str) and value != "",
    )


@settings
class LabelsConfig:
    """The person or monitor that looks at trajectories; here an oracle that knows the cost."""

    # Steps between the prefixes that are judged as well.
    interval: int = whole(20)
    terminal_only: bool = switch(False)
    # Share of labels that are wrong.
    noise: float = fraction(0.0)
    # A trajectory that ended before its time: "violating", or judged "by_cost" like any other.
    early_end: str = choice("violating", "violating", "by_cost")


@settings
class QueryConfig:
    """Which trajectories are labelled."""

    # Share of all trajectories.
    fraction: float = static(0.2, "a number from 1e-6 to 1", lambda value: 1e-6 <= value <= 1)
    # Labelled together; the pool grows until this many are due. Few and often, so that the estimator keeps up with
    # the policy.
    batch: int = whole(1)
    # "cv": where the credits are most uncertain for their size; "random".
    rule: str = choice("cv", "cv", "random")
    # Share of the picks that is drawn at random all the same. Costs are uncertain for their size where they are small:
    # trajectories that look safe. An estimator that sees few others turns optimistic, and the policy follows it.
    random_share: float = static(0.5, "a number from 0 to 1", lambda value: 0 <= value <= 1)
    # Trajectories under this score are left alone.
    min_cv: float = nonnegative(0.0)
    # Most labelled trajectories of a seed; 0 for no bound.
    budget: int = whole(0, low=0)


@settings
class RefitConfig:
    """Fitting the estimator after each batch of labels."""

    passes: int = whole(4)
    # Gradient steps in a pass; after each pass it is asked whether that was enough.
    steps: int = whole(2)
    new_batch: int = whole(2)
    stored_batch: int = whole(14)
    # Labelled trajectories that are kept; the oldest go first.
    store: int = whole(512)
    lr: float = positive(3e-3)
    weight_decay: float = nonnegative(1e-4)
    max_grad_norm: float = positive(1.0)
    # Accuracy on the new labels at which a refit stops.
    target_accuracy: float = fraction(0.975)


@settings
class PretrainConfig:
    """Fitting the estimator to recorded trajectories before any run."""

    # Most gradient steps. The speed of a robot is found in some hundred, its place on a circle in thousands.
    # With 0 nothing is trained: the accuracy of the estimator given by estimator.init is printed.
    steps: int = whole(4000, low=0)
    # Trajectories in a gradient step.
    batch: int = whole(32)
    # Rate of the first step; falls linearly to a tenth.
    lr: float = static(3e-3, "a number above 0", lambda value: 0 < value < math.inf, most=1e9)
    # Much more than in a refit: a file stays the same, and an estimator that reads the step learns its noise by heart.
    weight_decay: float = static(0.3, "a finite number of at least 0", lambda value: 0 <= value < math.inf, most=1e9)
    # Gradient steps between two looks at the trajectories to choose by.
    every: int = whole(50)
    # Share of their prefixes judged right at which it ends.
    target_accuracy: float = static(0.97, "a number from 0 to 1", lambda value: 0 <= value <= 1)
    # Share of the trajectories that are held out; the same share of the rest decides when it ends and what is kept.
    test_share: float = static(0.1, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Megabytes of trajectories that are in memory at a time. A file may be larger.
    memory: int = whole(256)


@settings
class ConstraintConfig:
    """What the policy has to keep."""

    # Summed true cost up to which a trajectory is acceptable. `oracle` is told, and keeps the mean below it. With a
    # learned cost only the labeler knows it.
    cost_limit: float = nonnegative(25.0)
    # "probability": the mean estimated probability of an acceptable trajectory is at least d (as released);
    # "jensen": the mean summed cost is at most -log d (as in the paper), which implies it.
    form: str = choice("probability", "probability", "jensen")
    d: float = traced(0.9, "a number above 0 and below 1", lambda value: 0 < value < 1)


@settings
class CollectConfig:
    """The behaviours whose episodes `collect` writes to a file of offline data: policies while they learn.

    They learn with the true cost, one without a limit and one for each of `limits`; every so often each of them plays
    with every strength of noise. Mixed quality and mixed cost come from there.
    """

    # Environment steps of each behaviour's training. Enough for the one without a limit to break it often.
    steps: int = whole(1_000_000, most=MOST_STEPS)
    # Limits of the others, as multiples of constraint.cost_limit: episodes just within it and just beyond teach most.
    limits: tuple[float, ...] = multiples((0.5, 1.0, 2.0))
    # How many times episodes are taken: before any training, which is random behaviour, and evenly until its end.
    moments: int = whole(8, low=2)
    # Multiples of the policy's own noise: without any it repeats itself, with more it makes mistakes.
    noise: tuple[float, ...] = multiples((0.0, 1.0, 2.0))


@settings
class RunConfig:
    """What the host does around the compiled program."""

    # Iterations in one call of the program. Longer means less host traffic and rarer news.
    chunk: int = whole(1)
    # Iterations between checkpoints.
    checkpoint_every: int = whole(10)
    keep: int = whole(3, low=2)
    tensorboard: bool = switch(True)
    # Episodes of each seed in the evaluation that closes a run.
    evaluation_episodes: int = whole(20, low=0)


@settings
class Config:
    """Everything that defines a run."""

    # Settings under a name, see `PRESETS`.
    preset: str = choice("ours", "ours", "paper")
    # A task of this package, or "module:Class" for one's own.
    task: str = static("SafetyAntVelocity-v1", "the name of a task", lambda value: True)
    physics: str = choice("auto", "auto", "native", "mjx")
    # Environment steps of each seed.
    steps: int = whole(10_000_000, most=MOST_STEPS)
    # The first seed and how many follow it.
    seed: int = whole(0, low=0, most=2**32 - 1)
    seeds: int = whole(1, most=MOST_LANES)
    # Values to run side by side, for instance "ppo.actor_lr=1e-4,3e-4; ppo.clip=0.1,0.2".
    sweep: str = static("", "text such as 'ppo.actor_lr=1e-4,3e-4'", lambda value: isinstance(value, str))
    environment: EnvironmentConfig = EnvironmentConfig()
    policy: PolicyConfig = PolicyConfig()
    critic: CriticConfig = CriticConfig()
    normalize: NormalizeConfig = NormalizeConfig()
    ppo: PPOConfig = PPOConfig()
    lagrange: LagrangeConfig = LagrangeConfig()
    method: MethodConfig = MethodConfig()
    estimator: EstimatorConfig = EstimatorConfig()
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
