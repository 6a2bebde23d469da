"""Lanes: the seeds of a run under every combination of swept values."""

import dataclasses
import itertools
import math
from typing import Any

from traces_jax.config import checks
from traces_jax.config.fields import MOST_LANES, ConfigError, show
from traces_jax.config.schema import Config, all_fields


@dataclasses.dataclass(frozen=True)
class Lane:
    """One seed with one setting of the swept fields."""

    name: str
    seed: int
    config: Config


def lanes(config: Config) -> list[Lane]:
    """The lanes of a run: every seed under every combination of swept values."""
    swept = parse(config.sweep)
    count = config.seeds * math.prod(len(choices) for _, choices in swept)
    if count > MOST_LANES:
        raise ConfigError(
            f"seeds={config.seeds} with sweep={show(config.sweep)} is not right: these are {count} lanes; "
            f"at most {MOST_LANES} would be right."
        )
    result = []
    for values in itertools.product(*(choices for _, choices in swept)):
        changed = config
        for (path, _), value in zip(swept, values, strict=True):
            changed = with_value(changed, path, value)
        settings_name = " ".join(f"{path}={_short(value)}" for (path, _), value in zip(swept, values, strict=True))
        for seed in range(config.seed, config.seed + config.seeds):
            result.append(Lane(f"seed={seed} {settings_name}".strip(), seed, changed))
    return result


def _short(value: float) -> str:
    """The shortest text that reads back as the value: 0.1, 25, 1e-05."""
    return repr(value).removesuffix(".0")


def parse(text: str) -> list[tuple[str, list[float]]]:
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
        if choices.count(",") >= MOST_LANES:
            raise ConfigError(
                f"sweep={show(text)} is not right: it gives {path} {choices.count(',') + 1} values; "
                f"at most {MOST_LANES} would be right."
            )
        for choice_text in choices.split(","):
            try:
                value = float(choice_text)
            except ValueError:
                raise ConfigError(f"sweep of {path}: {show(choice_text.strip())} is not a number.") from None
            values.append(checks.checked(field, value, path))
        if len(set(values)) < len(values):
            raise ConfigError(f"sweep={show(text)} is not right: it gives {path} the same value twice.")
        result.append((path, values))
    return result


def _find_traced(path: str) -> dataclasses.Field:
    paths = all_fields()
    names = [name for name, field in paths.items() if field.metadata["traced"]]
    if path in paths and path not in names:
        raise ConfigError(
            f"sweep of {path} is not right: it shapes the program and cannot differ between lanes; "
            f"choose one of {', '.join(names)}."
        )
    if path not in names:
        raise checks.unknown("field that a sweep can vary", path, names)
    return paths[path]


def with_value(config: Any, path: str, value: Any) -> Any:
    """The config with another value at a dotted path."""
    name, _, rest = path.partition(".")
    inner = with_value(getattr(config, name), rest, value) if rest else value
    return dataclasses.replace(config, **{name: inner})
