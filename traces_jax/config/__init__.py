"""Settings: the only place that knows defaults, what may be set, and what is a sensible value.

`Config` is a frozen dataclass and at the same time a JAX pytree. Each field says which side it lives on:

  static(...)  sizes, names and switches; a change compiles another program
  traced(...)  numbers inside the program; they may differ between the lanes of one run (see `lanes`)

The core reads `config.ppo.clip` either way and never asks.
"""

import dataclasses
import difflib
import itertools
import json
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from traces_jax import tasks


class ConfigError(ValueError):
    """One sentence: the field, its value, and what would be right."""


# The compiled program counts in int32.
MOST = 2**31 - 1
# Environment steps are counted by Python alone; an iteration has at most MOST * MOST of them.
_MOST_STEPS = 2**62
# Layers of a network, and units in one. Who needs more should not find out by waiting for a compiler.
_MOST_LAYERS, _MOST_UNITS = 64, 2**20
# Lanes of one program, and numbers in a tuple.
_MOST_LANES, _MOST_NUMBERS = 4096, 64
# A longer text is cut when a sentence quotes it.
_LONGEST = 200


def _field(
    default: Any, right: str, check: Callable[[Any], bool], *, is_traced: bool, most: float | None = None
) -> Any:
    """most: a bound that users hardly ever meet, so that it has a sentence of its own."""
    return dataclasses.field(
        default=default, metadata={"right": right, "check": check, "traced": is_traced, "most": most}
    )


def static(default: Any, right: str, check: Callable[[Any], bool], most: float | None = None) -> Any:
    """A field that shapes the program."""
    return _field(default, right, check, is_traced=False, most=most)


def traced(default: float, right: str, check: Callable[[float], bool]) -> Any:
    """A finite number inside the program; may differ from lane to lane."""
    return _field(default, right, lambda value: math.isfinite(value) and check(value), is_traced=True)


def choice(default: str, *names: str) -> Any:
    """A static field with few values."""
    return static(default, f"one of {', '.join(names)}", lambda value: value in names)


def switch(default: bool) -> Any:
    """A static yes or no."""
    return static(default, "true or false", lambda value: isinstance(value, bool))


def whole(default: int, low: int = 1, most: int = MOST) -> Any:
    """A static whole number."""
    return static(default, f"a whole number of at least {low}", lambda value: value >= low, most=most)


def positive(default: float) -> Any:
    """A traced number above zero."""
    return traced(default, "a number above 0", lambda value: value > 0)


def nonnegative(default: float) -> Any:
    """A traced number of at least zero."""
    return traced(default, "a finite number of at least 0", lambda value: value >= 0)


def fraction(default: float) -> Any:
    """A traced number between zero and one."""
    return traced(default, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def layers(default: tuple[int, ...], least: int = 0) -> Any:
    """Static widths of hidden layers."""
    return static(
        default,
        f"a tuple of {'one or more ' if least else ''}whole numbers above 0",
        lambda value: len(value) >= least and all(type(n) is int and n > 0 for n in value),
        most=_MOST_UNITS,
    )


def multiples(default: tuple[float, ...]) -> Any:
    """Static finite numbers of at least zero; there is at least one."""
    return static(
        default,
        "a tuple of one or more finite numbers, none below 0",
        lambda value: len(value) > 0 and all(type(n) in (int, float) and 0 <= n < math.inf for n in value),
        most=1e9,
    )


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(cls: type) -> type:
    """Makes a frozen dataclass whose traced fields and sub-settings are pytree children."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    children = [f.name for f in dataclasses.fields(cls) if f.metadata.get("traced", not f.metadata)]
    rest = [f.name for f in dataclasses.fields(cls) if f.name not in children]
    return jax.tree_util.register_dataclass(cls, data_fields=children, meta_fields=rest)


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

    hidden: int = whole(4, most=_MOST_UNITS)
    # GRU layers.
    depth: int = whole(2, most=_MOST_LAYERS)
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
    # With 0 it is only said how good the estimator is that estimator.init names.
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
    steps: int = whole(1_000_000, most=_MOST_STEPS)
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
    steps: int = whole(10_000_000, most=_MOST_STEPS)
    # The first seed and how many follow it.
    seed: int = whole(0, low=0, most=2**32 - 1)
    seeds: int = whole(1, most=_MOST_LANES)
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


# Fields that earlier versions had: what they are called now.
RENAMED = {"labels.limit": "constraint.cost_limit", "lagrange.cost_limit": "constraint.cost_limit"}


def make(**changes: Any) -> ml_collections.ConfigDict:
    """What an experiment file returns: all defaults with `changes` applied.

    Keys of `changes` are field names; values for groups are dicts. Unknown names fail here already.
    """
    tree = to_dict(Config())
    _apply(tree, changes, path="")
    return ml_collections.ConfigDict(tree)


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dictionary."""
    return dataclasses.asdict(config)


def from_dict(tree: Any) -> Config:
    """Builds and validates. Every name must be known; every value must be of its field's type and sensible."""
    config = _from_tree(tree)
    idle = without_effect(config)
    for path, _ in _parse_sweep(config.sweep):
        if path in idle:
            raise ConfigError(f"sweep of {path} is not right: all lanes would be equal, {idle[path]}.")
    return config


def from_saved(tree: Any) -> Config:
    """Builds and validates what `to_json` wrote, now or in an earlier version, which allowed equal lanes."""
    return _from_tree(updated(tree))


def _from_tree(tree: Any) -> Config:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the settings are {show(tree)}; a group of fields would be right.")
    config = _build(Config, tree, path="")
    _validate_sizes(config)
    lanes(config)
    return config


def updated(tree: Any) -> Any:
    """A config's tree, as an earlier version may have written it, with the names of today. Others come back as is."""
    if not isinstance(tree, Mapping):
        return tree
    groups = {name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    method = groups.get("method")
    learns = isinstance(method, dict) and method.get("source") == "traces"
    for old, new in RENAMED.items():
        (group, name), (new_group, new_name) = old.split("."), new.split(".")
        own = groups.get(group)
        if not isinstance(own, dict) or name not in own:
            continue
        value = own.pop(name)
        target = groups.setdefault(new_group, {})
        # Each source had a name of its own for the limit.
        if (group == "labels") == learns and isinstance(target, dict):
            target.setdefault(new_name, value)
        sweep = groups.get("sweep")
        if isinstance(sweep, str):
            groups["sweep"] = sweep.replace(old, new)
    return groups


def to_json(config: Config) -> str:
    """Text that `from_dict(json.loads(text))` reads back."""
    return json.dumps(to_dict(config), indent=2) + "\n"


@dataclasses.dataclass(frozen=True)
class Lane:
    """One column of a run: a seed, with a setting of the swept fields."""

    name: str
    seed: int
    config: Config


# What has no effect, and when. A path that ends with a dot is a whole group.
_IDLE: tuple[tuple[Callable[[Config], bool], str, tuple[str, ...]], ...] = (
    (
        lambda config: config.method.source == "oracle",
        "method.source=oracle is given the true cost",
        (
            *("estimator.", "query.", "refit.", "method.order", "constraint.form", "constraint.d"),
            *("labels.interval", "labels.terminal_only", "labels.noise"),
        ),
    ),
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


def without_effect(config: Config) -> dict[str, str]:
    """The dotted paths of fields that change nothing in a training run with this config, and the reason for each.

    It follows from static fields alone, so that it is the same for all lanes.
    """
    found: dict[str, str] = {}
    for applies, reason, names in _IDLE:
        if applies(config):
            found |= {path: reason for path in all_fields() if path.startswith(names) and path not in found}
    return found


def changed(tree: Mapping[str, Any]) -> list[str]:
    """The dotted paths of known fields whose values in a tree of settings are not the defaults."""

    def value(path: str, default: Any) -> Any:
        group, _, name = path.rpartition(".")
        own = tree.get(group, {}) if group else tree
        return own.get(name, default)

    return [path for path, field in all_fields().items() if value(path, field.default) != field.default]


def lanes(config: Config) -> list[Lane]:
    """The lanes of a run: every seed under every combination of swept values."""
    swept = _parse_sweep(config.sweep)
    count = config.seeds * math.prod(len(choices) for _, choices in swept)
    if count > _MOST_LANES:
        raise ConfigError(
            f"seeds={config.seeds} with sweep={show(config.sweep)} is not right: these are {count} lanes; "
            f"at most {_MOST_LANES} would be right."
        )
    result = []
    for values in itertools.product(*(choices for _, choices in swept)):
        changed = config
        for (path, _), value in zip(swept, values, strict=True):
            changed = _replace(changed, path, value)
        settings_name = " ".join(f"{path}={_short(value)}" for (path, _), value in zip(swept, values, strict=True))
        for seed in range(config.seed, config.seed + config.seeds):
            result.append(Lane(f"seed={seed} {settings_name}".strip(), seed, changed))
    return result


def _short(value: float) -> str:
    """The shortest text that reads back as the value: 0.1, 25, 1e-05."""
    return repr(value).removesuffix(".0")


def unknown(what: str, name: str, names: list[str]) -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does."""
    if name in RENAMED:
        return ConfigError(f"{what} {name!r} does not exist; it is called {RENAMED[name]!r} now.")
    near = difflib.get_close_matches(name[:_LONGEST].lower(), [n.lower() for n in names], n=1, cutoff=0.4)
    nearest = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f"did you mean {nearest!r}?" if nearest else f"choose one of {', '.join(names)}."
    return ConfigError(f"{what} {show(name)} does not exist; {hint}")


def check_path(path: str) -> dataclasses.Field | None:
    """The field at a dotted path, or None for a group of fields; refuses others."""
    known = all_fields()
    groups = [field.name for field in dataclasses.fields(Config) if dataclasses.is_dataclass(field.type)]
    if path in known or path in groups:
        return known.get(path)
    # Names are compared within the group that was meant.
    group, _, _ = path.rpartition(".")
    raise unknown("field", path, [name for name in known if group and name.startswith(f"{group}.")] or list(known))


def paths_named(name: str) -> list[str]:
    """The dotted paths that are, or end with, a name."""
    return [path for path in all_fields() if path == name or path.endswith(f".{name}")]


def _apply(tree: dict[str, Any], changes: Mapping[str, Any], path: str) -> None:
    for name, value in changes.items():
        if name not in tree:
            raise unknown("field", path + name, [path + known for known in tree])
        if isinstance(tree[name], dict):
            if not isinstance(value, Mapping):
                raise _not_a_group(path + name, value)
            _apply(tree[name], value, f"{path}{name}.")
        else:
            tree[name] = value


def _not_a_group(path: str, value: Any) -> ConfigError:
    return ConfigError(f"{path}={show(value)} is not right: it is a group of fields, not a value.")


def show(value: Any) -> str:
    """A value for a sentence, whatever it is."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Nested too deeply, or a whole number with thousands of digits.
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _build(cls: type, tree: Mapping[str, Any], path: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in tree:
        if name not in fields:
            raise unknown("field", f"{path}{name}", [path + known for known in fields])
    values = {}
    for name, field in fields.items():
        if name not in tree:
            continue
        value = tree[name]
        if dataclasses.is_dataclass(field.type):
            if not isinstance(value, Mapping):
                raise _not_a_group(path + name, value)
            values[name] = _build(typing.cast(type, field.type), value, f"{path}{name}.")
        else:
            values[name] = _check(field, value, path + name)
    return cls(**values)


def _check(field: dataclasses.Field, value: Any, path: str) -> Any:
    wrong = ConfigError(f"{path}={show(value)} is not right: it must be {field.metadata['right']}.")
    if isinstance(value, list):
        value = tuple(value)
    if field.type is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise wrong from None
    kind = typing.get_origin(field.type) or field.type
    if not isinstance(value, kind) or (field.type is int and isinstance(value, bool)):  # type: ignore[arg-type]
        raise wrong
    if field.type is float and math.isnan(value):
        raise wrong
    if path == "task" and value not in tasks.NAMES and not tasks.is_own(value):
        raise unknown("task", value, list(tasks.NAMES))
    if not field.metadata["check"](value):
        raise wrong
    if field.metadata["traced"]:
        with np.errstate(over="ignore"):
            single = float(np.float32(value))
        if not field.metadata["check"](single):
            raise ConfigError(
                f"{path}={value} is not right: as a float32 it is {single}; it must be {field.metadata['right']}."
            )
    most = field.metadata["most"]
    if isinstance(value, tuple) and len(value) > _MOST_NUMBERS:
        raise ConfigError(f"{path}={show(value)} is not right: it must have at most {_MOST_NUMBERS} numbers.")
    if most is not None and max(value if isinstance(value, tuple) else (value,), default=0) > most:
        each = "each number must be" if isinstance(value, tuple) else "it must be"
        raise ConfigError(f"{path}={show(value)} is not right: {each} at most {most}.")
    return value


def check_iterations(config: Config, path: str, steps: int) -> None:
    """Refuses environment steps, the value of the field at `path`, that are not whole iterations."""
    per_iteration = config.iteration_steps
    if steps % per_iteration:
        raise ConfigError(
            f"{path}={steps} does not divide into iterations of {per_iteration} steps ({_product(config)}); "
            f"{max(1, _rounded(steps, per_iteration)) * per_iteration} would be right."
        )
    if steps // per_iteration > MOST:
        raise ConfigError(
            f"{path}={steps} is not right: these are {steps // per_iteration} iterations; "
            f"{MOST * per_iteration}, or more steps in an iteration, would be right."
        )


def _rounded(number: int, divisor: int) -> int:
    """The whole number nearest to a quotient; the lower one of two. Floats would not do for large numbers."""
    return (2 * number + divisor - 1) // (2 * divisor)


def _product(config: Config) -> str:
    return f"environment.count * environment.steps = {config.environment.count} * {config.environment.steps}"


def _validate_sizes(config: Config) -> None:
    if config.seed + config.seeds > 2**32:
        raise ConfigError(
            f"seed={config.seed} with seeds={config.seeds} is not right: seeds must stay below {2**32}, "
            f"where random keys repeat."
        )
    check_iterations(config, "steps", config.steps)
    per_iteration = config.iteration_steps
    if per_iteration % config.ppo.minibatch:
        raise ConfigError(
            f"ppo.minibatch={config.ppo.minibatch} does not divide the {per_iteration} samples of an iteration "
            f"({_product(config)}); {_nearest_divisor(per_iteration, config.ppo.minibatch)} would be right."
        )
    if config.iterations % config.run.chunk:
        raise ConfigError(
            f"run.chunk={config.run.chunk} does not divide the {config.iterations} iterations of the run; "
            f"{_nearest_divisor(config.iterations, config.run.chunk)} would be right."
        )
    if config.run.checkpoint_every % config.run.chunk:
        raise ConfigError(
            f"run.checkpoint_every={config.run.checkpoint_every} must be a multiple of run.chunk={config.run.chunk}; "
            f"{max(1, config.run.checkpoint_every // config.run.chunk) * config.run.chunk} would be right."
        )
    if config.pretrain.steps % config.pretrain.every:
        raise ConfigError(
            f"pretrain.steps={config.pretrain.steps} must be a multiple of pretrain.every={config.pretrain.every}; "
            f"{max(1, config.pretrain.steps // config.pretrain.every) * config.pretrain.every} would be right."
        )


def _nearest_divisor(number: int, near: int) -> int:
    """The divisor of a number that is nearest to another number; the lower one of two.

    Of huge numbers it may be one that is not nearest: who looks at all of them hangs.
    """
    if near >= number:
        return number
    for distance in range(100_000):
        for candidate in (near - distance, near + distance):
            if candidate > 0 and number % candidate == 0:
                return candidate
    return math.gcd(number, near)


def _parse_sweep(text: str) -> list[tuple[str, list[float]]]:
    """Reads "a.b=1,2; c=3" as [("a.b", [1.0, 2.0]), ("c", [3.0])], each checked against its field."""
    result: list[tuple[str, list[float]]] = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        path, equals, choices = part.partition("=")
        path = path.strip()
        if not equals or not choices.strip():
            raise ConfigError(f"sweep={show(text)} is not right: it must be text such as 'ppo.actor_lr=1e-4,3e-4'.")
        if path in (seen for seen, _ in result):
            raise ConfigError(f"sweep={show(text)} is not right: it names {path!r} twice.")
        field, values = _find_traced(path), []
        if choices.count(",") >= _MOST_LANES:
            raise ConfigError(
                f"sweep={show(text)} is not right: it gives {path} {choices.count(',') + 1} values; "
                f"at most {_MOST_LANES} would be right."
            )
        for choice_text in choices.split(","):
            try:
                value = float(choice_text)
            except ValueError:
                raise ConfigError(f"sweep of {path}: {show(choice_text.strip())} is not a number.") from None
            values.append(_check(field, value, path))
        if len(set(values)) < len(values):
            raise ConfigError(f"sweep={show(text)} is not right: it gives {path} the same value twice.")
        result.append((path, values))
    return result


def all_fields(cls: type = Config, path: str = "") -> dict[str, dataclasses.Field]:
    """Every field that holds a value, by its dotted path."""
    found: dict[str, dataclasses.Field] = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.type):
            found |= all_fields(typing.cast(type, field.type), f"{path}{field.name}.")
        else:
            found[path + field.name] = field
    return found


def _find_traced(path: str) -> dataclasses.Field:
    paths = all_fields()
    names = [name for name, field in paths.items() if field.metadata["traced"]]
    if path in paths and path not in names:
        raise ConfigError(
            f"sweep of {path} is not right: it shapes the program and cannot differ between lanes; "
            f"choose one of {', '.join(names)}."
        )
    if path not in names:
        raise unknown("field that a sweep can vary", path, names)
    return paths[path]


def _replace(config: Any, path: str, value: float) -> Any:
    name, _, rest = path.partition(".")
    inner = _replace(getattr(config, name), rest, value) if rest else value
    return dataclasses.replace(config, **{name: inner})
