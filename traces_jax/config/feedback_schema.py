"""Settings of labels: who labels what, and which trajectories."""

from traces_jax.config.fields import choice, fraction, is_labeler, nonnegative, settings, static, switch, whole


@settings
class LabelsConfig:
    """The labeler: people, a program, or one simulated from the true cost."""

    # Who labels: "oracle" (simulated from the true cost), "people", a file of labels (.jsonl), or "module:function" for
    # a function of your own. See docs/labeling.md.
    by: str = static("oracle", "oracle, people, a .jsonl file or module:function", is_labeler)
    # Steps between labelled prefixes of a trajectory.
    interval: int = whole(20)
    # Label full trajectories only, no prefixes.
    terminal_only: bool = switch(False)
    # Probability that a label is flipped.
    noise: float = fraction(0.0)
    # Label of a trajectory that terminated early: always "violating", or "by_cost" like any other.
    early_end: str = choice("violating", "violating", "by_cost")


@settings
class PoolConfig:
    """Episodes that wait for labels, if episodes continue across iterations."""

    # Environments of which every step is kept until their episode ends, so that it can be labelled; at most all. Each
    # takes memory for an episode. Without it, with environment.reset_each_iteration, all episodes can be labelled.
    tracked: int = whole(64)


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
    random_share: float = static(0.75, "a number from 0 to 1", lambda value: 0 <= value <= 1)
    # Trajectories with a lower coefficient of variation are not labelled.
    min_cv: float = nonnegative(0.0)
    # Maximum number of labelled trajectories for each seed; 0 for no limit.
    budget: int = whole(0, low=0)
