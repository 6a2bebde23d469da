"""Settings of single cost sources, a group each. Those of TraCeS are in `schema`: `estimator`."""

from traces_jax.config.fields import choice, layers, nonnegative, settings, static, switch, traced, whole

# Cost sources of this package.
SOURCES = ("traces", "ct", "rlsf", "oracle")


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
