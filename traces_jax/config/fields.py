"""Kinds of settings: how a field says what it may hold, and on which side of the compiled program it lives.

static(...)  sizes, names and switches; a change compiles another program
traced(...)  numbers inside the program; they may differ between the lanes of one run (see `sweep`)
"""

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Any

import jax


class ConfigError(ValueError):
    """One sentence: the field, its value, and what would be right."""


# The compiled program counts in int32.
MOST = 2**31 - 1


# Environment steps are counted by Python alone; an iteration has at most MOST * MOST of them.
MOST_STEPS = 2**62


# Layers of a network, and units in one. Who needs more should not find out by waiting for a compiler.
MOST_LAYERS, MOST_UNITS = 64, 2**20


# Lanes of one program, and numbers in a tuple.
MOST_LANES, MOST_NUMBERS = 4096, 64


# A longer text is cut when a sentence quotes it.
LONGEST = 200


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
        most=MOST_UNITS,
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


def show(value: Any) -> str:
    """A value for a sentence, whatever it is."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Nested too deeply, or a whole number with thousands of digits.
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
