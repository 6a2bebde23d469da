"""What every setting does, read from the comments above its field."""

import dataclasses
import functools
import inspect
import re
import textwrap
import typing

from traces_jax.config import solver_schema
from traces_jax.config.checks import unknown
from traces_jax.config.schema import Config

# The group of settings that belong to none.
MAIN = "main"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A setting: its dotted path, its default, what its value must be, and its comment (may be empty)."""

    path: str
    default: object
    right: str
    comment: str


def groups() -> dict[str, str]:
    """The groups of settings and what each is about, in one sentence."""
    return {
        name: (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ") for name, cls in _classes().items()
    }


def overview() -> dict[str, str]:
    """The same, with the groups that only some solvers read on one line."""
    of_solvers = [name for name, cls in _classes().items() if cls.__module__ == solver_schema.__name__]
    found = {name: sentence for name, sentence in groups().items() if name not in of_solvers}
    return found | {", ".join(of_solvers): "Settings of single solvers."}


def settings(group: str) -> list[Setting]:
    """The settings of a group, in the order of the file."""
    if group not in _classes():
        raise unknown("group of settings", group, list(_classes()))
    cls, prefix = _classes()[group], "" if group == MAIN else f"{group}."
    comments = _comments(cls)
    return [
        Setting(f"{prefix}{field.name}", field.default, field.metadata["right"], comments.get(field.name, ""))
        for field in dataclasses.fields(cls)
        if field.metadata
    ]


def page(group: str, width: int = 100) -> str:
    """The settings of a group as text: its sentence, then each path with its default and its comment."""
    lines = [groups()[group], ""] if group in _classes() else []
    for setting in settings(group):
        sentence = f"{setting.comment} " if setting.comment else ""
        lines.append(f"  --config.{setting.path}={_shown(setting.default)}")
        lines += textwrap.wrap(
            f"{sentence}({setting.right})", width, initial_indent="      ", subsequent_indent="      "
        )
    return "\n".join(lines)


@functools.cache
def _classes() -> dict[str, type]:
    inner = {f.name: typing.cast(type, f.type) for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.type)}
    return {MAIN: Config, **inner}


def _comments(cls: type) -> dict[str, str]:
    """The comment above each field of a class."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(cls).splitlines():
        if comment := re.match(r" {4}# ?(.*)", line):
            above.append(comment[1])
            continue
        if field := re.match(r" {4}(\w+): ", line):
            found[field[1]] = " ".join(above)
        above = []
    return found


def _shown(value: object) -> str:
    """A default as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")
