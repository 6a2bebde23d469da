"""Which settings have no effect, given the others."""

from collections.abc import Callable, Mapping
from typing import Any

from traces_jax.config.schema import SOURCES, Config, all_fields
from traces_jax.config.solver_schema import SOLVERS

_LAGRANGIAN = ("ppo_lag", "trpo_lag", "cup", "focops")
_FIRST_ORDER = ("ppo_lag", "cppo_pid", "cup", "focops", "p3o", "ppo_saute", "ppo")
_SECOND_ORDER = ("trpo_lag", "cpo", "trpo_saute", "trpo")
_WITH_COST_CRITIC = (*_LAGRANGIAN, "cppo_pid", "p3o", "cpo")
# Paths that only some solvers of this package read. A path that ends with a dot is a whole group.
_READ_BY: dict[tuple[str, ...], tuple[str, ...]] = {
    ("lagrange.initial",): (*_LAGRANGIAN, "cppo_pid"),
    ("lagrange.lr", "lagrange.proportional"): _LAGRANGIAN,
    ("lagrange.maximum",): ("ppo_lag", "trpo_lag"),
    ("pid.",): ("cppo_pid",),
    ("cup.",): ("cup",),
    ("focops.",): ("focops",),
    ("p3o.",): ("p3o",),
    ("cpo.",): ("cpo",),
    ("saute.",): ("trpo_saute", "ppo_saute"),
    ("trust_region.tries",): tuple(name for name in _SECOND_ORDER if name != "cpo"),
    ("trust_region.",): _SECOND_ORDER,
    ("ppo.clip",): tuple(name for name in _FIRST_ORDER if name != "focops"),
    ("ppo.target_kl",): tuple(name for name in _FIRST_ORDER if name != "cup"),
    ("ppo.passes", "ppo.actor_lr", "ppo.actor_lr_decay", "ppo.critic_lr", "ppo.entropy"): _FIRST_ORDER,
    ("ppo.cost_gae_lambda", "ppo.cost_critic_l2", "normalize.costs"): _WITH_COST_CRITIC,
    ("method.solver_version",): ("focops", "p3o", *_SECOND_ORDER, "ppo_saute"),
}

# The required probability while it is still below constraint.d.
_RISING = ("constraint.initial_d", "constraint.ramp")

# Paths that only some sources of this package read.
_OF_SOURCES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("ct.",): ("ct",),
    ("rlsf.",): ("rlsf",),
    (
        *(path for path in all_fields() if path.startswith("estimator.") and path != "estimator.init"),
        *("query.rule", "query.random_share", "query.min_cv", "constraint.form", "constraint.d", *_RISING),
    ): ("traces",),
}

# (condition, reason, paths without effect). A path that ends with a dot is a whole group.
_IDLE: tuple[tuple[Callable[[Config], bool], str, tuple[str, ...]], ...] = (
    (
        lambda config: config.method.source == "oracle",
        "method.source=oracle is given the true cost",
        (
            *("estimator.", "ct.", "rlsf.", "query.", "pool.", "refit.", "method.order"),
            *("constraint.form", "constraint.d", *_RISING, "constraint.correction"),
            *("constraint.beyond_horizon", "labels.by", "labels.interval", "labels.terminal_only", "labels.noise"),
        ),
    ),
    *(
        (
            # A source from elsewhere may read anything.
            lambda config, readers=readers: config.method.source in set(SOURCES) - set(readers),
            f"it is for method.source={' and '.join(readers)}",
            paths,
        )
        for paths, readers in _OF_SOURCES.items()
    ),
    (
        lambda config: config.method.source in ("ct", "rlsf"),
        "it corrects a probability, and method.source=ct and rlsf constrain summed costs",
        ("constraint.correction",),
    ),
    (
        lambda config: config.labels.by != "oracle",
        "labels.by names a labeler that does not read costs",
        ("labels.noise", "labels.early_end", "rlsf.segment_limit"),
    ),
    (
        lambda config: config.labels.terminal_only,
        "labels.terminal_only=true labels whole trajectories",
        ("labels.interval", "rlsf.labels", "rlsf.segment_limit"),
    ),
    (lambda config: config.rlsf.labels == "prefixes", "rlsf.labels=prefixes has no segments", ("rlsf.segment_limit",)),
    (
        lambda config: not config.spans,
        "environment.reset_each_iteration=true keeps every episode in one rollout",
        ("pool.",),
    ),
    (
        lambda config: config.constraint.policy == "noisy",
        "constraint.policy=noisy measures the exploring policy",
        ("constraint.share",),
    ),
    (
        lambda config: config.constraint.form == "jensen",
        "constraint.form=jensen constrains summed costs, not a probability",
        ("constraint.correction", *_RISING),
    ),
    (
        lambda config: config.query.rule == "random",
        "query.rule=random draws all picks",
        ("query.random_share",),
    ),
    (
        lambda config: not config.estimator.normalize_inputs,
        "estimator.normalize_inputs=false reads actions as they are",
        ("estimator.action_clip",),
    ),
    (
        lambda config: config.estimator.init != "none",
        "estimator.init names one that is not fresh",
        ("estimator.initial_probability", "estimator.initial_spread", "estimator.memory"),
    ),
    *(
        (
            # A solver from elsewhere may read anything.
            lambda config, readers=readers: config.method.solver in set(SOLVERS) - set(readers),
            f"it is for method.solver={', '.join(readers)}",
            paths,
        )
        for paths, readers in _READ_BY.items()
    ),
    (lambda config: config.physics == "native", "physics=native is not MJX", ("mjx.",)),
    (lambda config: True, "it is for traces_jax.pretrain", ("pretrain.",)),
    (lambda config: True, "it is for traces_jax.collect", ("collect.",)),
)

# What the commands before a training read. A path that ends with a dot is a whole group.
_READ = {
    "collect": (
        *("preset", "task", "physics", "mjx.", "environment.", "policy.", "critic.", "normalize.", "ppo.", "lagrange."),
        *("collect.", "constraint.cost_limit"),
    ),
    "pretrain": (
        *("preset", "task", "physics", "environment.", "normalize.", "estimator.", "labels.", "pretrain."),
        *("method.source", "ct.", "rlsf.", "constraint.cost_limit", "refit.store", "refit.max_grad_norm"),
    ),
}


def matters_to(command: str, path: str) -> bool:
    """Whether `collect` or `pretrain` does something else if the field has another value."""
    return any(path == known or (known.endswith(".") and path.startswith(known)) for known in _READ[command])


def without_effect(config: Config) -> dict[str, str]:
    """The dotted paths of fields without effect on a training run with this config, and the reason for each.

    It depends on static fields only, so it is the same for all lanes.
    """
    found: dict[str, str] = {}
    for applies, reason, names in _IDLE:
        if applies(config):
            found |= {path: reason for path in all_fields() if path.startswith(names) and path not in found}
    return found


def changed(tree: Mapping[str, Any]) -> list[str]:
    """The dotted paths of known fields whose values in a tree of settings differ from the defaults."""

    def value(path: str, default: Any) -> Any:
        group, _, name = path.rpartition(".")
        own = tree.get(group, {}) if group else tree
        return own.get(name, default)

    return [path for path, field in all_fields().items() if value(path, field.default) != field.default]
