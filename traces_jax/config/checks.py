"""Validation of settings. Each error is one sentence: the field, its value, and what would be right."""

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from traces_jax import tasks
from traces_jax.config.fields import LONGEST, MOST, MOST_NUMBERS, ConfigError, show
from traces_jax.config.schema import Config, all_fields

# Fields of earlier versions and their current names.
RENAMED = {"labels.limit": "constraint.cost_limit", "lagrange.cost_limit": "constraint.cost_limit"}


def unknown(what: str, name: str, names: list[str]) -> ConfigError:
    """The error for an unknown name, with the most similar known one."""
    if name in RENAMED:
        return ConfigError(f"{what} {name!r} does not exist; it is called {RENAMED[name]!r} now.")
    near = difflib.get_close_matches(name[:LONGEST].lower(), [n.lower() for n in names], n=1, cutoff=0.4)
    nearest = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f"did you mean {nearest!r}?" if nearest else f"choose one of {', '.join(names)}."
    return ConfigError(f"{what} {show(name)} does not exist; {hint}")


def check_path(path: str) -> dataclasses.Field | None:
    """The field at a dotted path, or None for a group of fields. Raises ConfigError for other paths."""
    known = all_fields()
    groups = [field.name for field in dataclasses.fields(Config) if dataclasses.is_dataclass(field.type)]
    if path in known or path in groups:
        return known.get(path)
    # Suggest only names of the same group.
    group, _, _ = path.rpartition(".")
    raise unknown("field", path, [name for name in known if group and name.startswith(f"{group}.")] or list(known))


def paths_named(name: str) -> list[str]:
    """The dotted paths that equal a name or end with it."""
    return [path for path in all_fields() if path == name or path.endswith(f".{name}")]


def not_a_group(path: str, value: Any) -> ConfigError:
    return ConfigError(f"{path}={show(value)} is not right: it is a group of fields, not a value.")


def build(cls: type, tree: Mapping[str, Any], path: str) -> Any:
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
                raise not_a_group(path + name, value)
            values[name] = build(typing.cast(type, field.type), value, f"{path}{name}.")
        else:
            values[name] = checked(field, value, path + name)
    return cls(**values)


def checked(field: dataclasses.Field, value: Any, path: str) -> Any:
    """The value, converted to its field's type. Raises ConfigError if it is not allowed."""
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
    if isinstance(value, tuple) and len(value) > MOST_NUMBERS:
        raise ConfigError(f"{path}={show(value)} is not right: it must have at most {MOST_NUMBERS} numbers.")
    if most is not None and max(value if isinstance(value, tuple) else (value,), default=0) > most:
        each = "each number must be" if isinstance(value, tuple) else "it must be"
        raise ConfigError(f"{path}={show(value)} is not right: {each} at most {most}.")
    return value


def check_iterations(config: Config, path: str, steps: int) -> None:
    """Raises ConfigError if `steps`, the value of the field at `path`, is not a multiple of an iteration's steps."""
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
    """The integer nearest to a quotient, rounding halves down. Floats would be inexact for large numbers."""
    return (2 * number + divisor - 1) // (2 * divisor)


def _product(config: Config) -> str:
    return f"environment.count * environment.steps = {config.environment.count} * {config.environment.steps}"


def sizes(config: Config) -> None:
    if config.seed + config.seeds > 2**32:
        raise ConfigError(
            f"seed={config.seed} with seeds={config.seeds} is not right: seeds must stay below {2**32}, "
            f"where random keys repeat."
        )
    check_iterations(config, "steps", config.steps)
    if config.environment.count == 1 and config.constraint.policy != "noisy":
        raise ConfigError(
            f"constraint.policy={config.constraint.policy!r} is not right with environment.count=1: one environment "
            f"plays the mean action and another one explores; 'noisy', or 2 environments, would be right."
        )
    if config.samples % config.ppo.minibatch:
        without = (
            f" without the {config.mean_environments} that play the mean action" if config.mean_environments else ""
        )
        raise ConfigError(
            f"ppo.minibatch={config.ppo.minibatch} does not divide the {config.samples} samples of an iteration "
            f"({_product(config)}{without}); {_nearest_divisor(config.samples, config.ppo.minibatch)} would be right."
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
    """The divisor of a number that is nearest to another number; the lower one in a tie.

    For huge numbers it may not be the nearest: the search is bounded, because trying all divisors would take too long.
    """
    if near >= number:
        return number
    for distance in range(100_000):
        for candidate in (near - distance, near + distance):
            if candidate > 0 and number % candidate == 0:
                return candidate
    return math.gcd(number, near)
