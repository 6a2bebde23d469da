"""Settings of learned costs: their networks, and how they are fitted."""

import math

from traces_jax.config.fields import (
    MOST_LAYERS,
    MOST_UNITS,
    choice,
    fraction,
    layers,
    nonnegative,
    positive,
    settings,
    static,
    switch,
    traced,
    whole,
)

# Cost sources of this package.
SOURCES = ("traces", "ct", "rlsf", "oracle")


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
    # A new estimator of a run starts with units that remember for long (see `network.with_memory`). In runs
    # its credit comes later in an episode, and the policy learns less from it (docs/journal.md).
    memory: bool = switch(False)
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
    # "segments": the labeler judges every labels.interval steps by themselves, as in the paper of RLSF. "prefixes": the
    # episode until then, like the labels of other sources, as in the paper of TraCeS.
    labels: str = choice("segments", "segments", "prefixes")
    # A segment is bad above this summed true cost.
    segment_limit: float = nonnegative(0.0)
    # A step costs 1 if its state is bad with more than this probability, otherwise 0.
    bad_above: float = traced(0.5, "a number above 0 and below 1", lambda value: 0 < value < 1)
    # Bits of the hash of a state. A trajectory is novel if the hash of one of its states is new.
    bits: int = whole(15, most=24)
    # The number of bad steps that an episode may have. RLSF knows it; with labels of segments that is the true limit.
    # Where no bad step is allowed, as after a violated prefix, it is 0.1.
    alpha: float = nonnegative(25.0)


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
