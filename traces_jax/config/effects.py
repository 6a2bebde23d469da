"""Which settings have no effect, given the others."""

from collections.abc import Callable, Mapping
from typing import Any

from traces_jax.config.schema import Config, all_fields

# (condition, reason, paths without effect). A path that ends with a dot is a whole group.
_IDLE: tuple[tuple[Callable[[Config], bool], str, tuple[str, ...]], ...] = (
    (
        lambda config: config.method.source == "oracle",
        "method.source=oracle is given the true cost",
        (
            *("estimator.", "ct.", "rlsf.", "query.", "refit.", "method.order", "constraint.form", "constraint.d"),
            *("labels.interval", "labels.terminal_only", "labels.noise"),
        ),
    ),
    (lambda config: config.method.source != "ct", "it is for method.source=ct", ("ct.",)),
    (lambda config: config.method.source != "rlsf", "it is for method.source=rlsf", ("rlsf.",)),
    (
        lambda config: config.method.source in ("ct", "rlsf"),
        "it is for method.source=traces",
        (
            *(path for path in all_fields() if path.startswith("estimator.") and path != "estimator.init"),
            *("query.rule", "query.random_share", "query.min_cv", "constraint.form", "constraint.d"),
        ),
    ),
    (
        lambda config: config.method.source == "rlsf",
        "method.source=rlsf labels segments",
        ("labels.interval", "labels.terminal_only"),
    ),
    (lambda config: config.rlsf.segment == 0, "rlsf.segment=0 labels whole trajectories", ("rlsf.segment_limit",)),
    (
        lambda config: config.labels.terminal_only,
        "labels.terminal_only=true labels whole trajectories",
        ("labels.interval",),
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
        ("estimator.initial_probability", "estimator.initial_spread"),
    ),
    (lambda config: True, "it is for traces_jax.pretrain", ("pretrain.",)),
    (lambda config: True, "it is for traces_jax.collect", ("collect.",)),
)

# What the commands before a training read. A path that ends with a dot is a whole group.
_READ = {
    "collect": (
        *("preset", "task", "physics", "environment.", "policy.", "critic.", "normalize.", "ppo.", "lagrange."),
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
