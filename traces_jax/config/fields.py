"""Kinds of fields: their allowed values, and whether they are static or traced.

static(...)  sizes, names and switches; a change needs a new compilation
traced(...)  numbers that are arrays inside the program; they may differ between the lanes of one run (see `sweep`)
"""

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Any

import jax

from traces_jax.core.own import is_own


class ConfigError(ValueError):
    """One sentence: the field, its value, and what would be right."""


# The compiled program counts in int32.
MOST = 2**31 - 1


# Environment steps are counted in Python only; an iteration has at most MOST * MOST of them.
MOST_STEPS = 2**62


# Maximum layers of a network and units of a layer. Larger values are refused at once, not after a long compilation.
MOST_LAYERS, MOST_UNITS = 64, 2**20


# Maximum lanes of one program and numbers in a tuple.
MOST_LANES, MOST_NUMBERS = 4096, 64


# Longer texts are cut when an error message quotes them.
LONGEST = 200


def _field(
    default: Any, right: str, check: Callable[[Any], bool], *, is_traced: bool, most: float | None = None
) -> Any:
    """most: an upper bound that users rarely reach; it has its own error message."""
    return dataclasses.field(
        default=default, metadata={"right": right, "check": check, "traced": is_traced, "most": most}
    )


def static(default: Any, right: str, check: Callable[[Any], bool], most: float | None = None) -> Any:
    """A field that the program is compiled for."""
    return _field(default, right, check, is_traced=False, most=most)


def traced(default: float, right: str, check: Callable[[float], bool]) -> Any:
    """A finite number that is traced; it may differ between lanes."""
    return _field(default, right, lambda value: math.isfinite(value) and check(value), is_traced=True)


def choice(default: str, *names: str) -> Any:
    """A static field with a fixed set of values."""
    return static(default, f"one of {', '.join(names)}", lambda value: value in names)


def choice_or_own(default: str, *names: str) -> Any:
    """A static field with a fixed set of values, or "module:Class" for a class outside this package."""
    return static(default, f"one of {', '.join(names)}, or module:Class", lambda value: value in names or is_own(value))


def switch(default: bool) -> Any:
    """A static boolean."""
    return static(default, "true or false", lambda value: isinstance(value, bool))


def whole(default: int, low: int = 1, most: int = MOST) -> Any:
    """A static integer."""
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
        most=MOST_UNITS,
    )


def multiples(default: tuple[float, ...]) -> Any:
    """A static tuple of one or more finite numbers of at least zero."""
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


def show(value: Any) -> str:
    """Any value as text for an error message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Nested too deeply, or an integer with thousands of digits.
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def is_labeler(value: Any) -> bool:
    """Whether a value can name a labeler: see `feedback.labelers`."""
    return isinstance(value, str) and (value in ("oracle", "people") or value.endswith(".jsonl") or is_own(value))
