"""Settings of the learned costs, one group for each."""

from traces_jax.config.fields import (
    MOST_LAYERS,
    MOST_UNITS,
    choice,
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
