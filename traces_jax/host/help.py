"""The page that --help prints: what a command does, its flags, and an example. It fits a screen."""

import shutil
import textwrap
from collections.abc import Iterable

from absl import flags

# Lines of a screen, and its largest useful width.
LINES, WIDTH = 40, 120
_INDENT = 22


def page(doc: str, own_flags: Iterable[flags.Flag], more: str = "") -> str:
    """The text of --help.

    doc: of the command's module; its first line is "Name: example". own_flags: the command's; more: what comes between
    flags and example.
    """
    head, _, body = doc.strip().partition("\n")
    example = head.partition(": ")[2]
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, LINES)).columns)
    parts = [body.strip(), "\n".join(_flag(flag, width) for flag in own_flags), more, f"Example:\n  {example}"]
    return "\n\n".join(part for part in parts if part)


def _flag(flag: flags.Flag, width: int) -> str:
    what, known = (flag.help or "").rstrip("."), flag.default not in (None, "", [], False)
    default = f" Default: {str(flag.default_as_str).strip(_QUOTES)}." if known and "Default" not in what else ""
    name = f"  --{flag.name}{'' if flag.boolean else '=...'}"
    lines = textwrap.wrap(f"{what}.{default}", width - _INDENT) or [""]
    first = f"{name:<{_INDENT}}{lines[0]}" if len(name) < _INDENT - 1 else f"{name}  {lines[0]}"
    return "\n".join([first, *(" " * _INDENT + line for line in lines[1:])])


_QUOTES = "\"'"
