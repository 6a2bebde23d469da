"""Preprocesses command-line settings for ml_collections: unknown names, integers, missing `config.` prefixes."""

import decimal
import re
from collections.abc import Sequence

from traces_jax import config as config_lib
from traces_jax.host import shipped

# More digits than any field allows. Writing out numbers with exponents of millions would take too long.
_DIGITS = 100


def readable(argv: Sequence[str]) -> list[str]:
    """The command line with integers written out (1e5 as 100000) and names of experiments as their files.

    Raises ConfigError for unknown fields.
    """
    result = _with_files(argv)
    for place, argument in enumerate(argv):
        match = re.fullmatch(r"--?(?:no)?config\.([^=]*)(=.*)?", argument, re.DOTALL)
        if not match:
            continue
        path, value = match.groups()
        field = config_lib.check_path(path)
        if field is None or field.type is not int:
            continue
        if value:
            result[place] = f"--config.{path}={_whole(path, value[1:], field.metadata['right'])}"
        elif place + 1 < len(argv):
            result[place + 1] = _whole(path, argv[place + 1], field.metadata["right"])
    return result


def _with_files(argv: Sequence[str]) -> list[str]:
    """The command line with --config=ball_run as the path of that experiment, and --list alone as --list=all."""
    result = ["--list=all" if argument == "--list" else argument for argument in argv]
    for place, argument in enumerate(argv):
        flag, equals, value = argument.partition("=")
        if flag not in ("--config", "-config"):
            continue
        if equals:
            result[place] = f"{flag}={shipped.find(value)}"
        elif place + 1 < len(argv):
            result[place + 1] = str(shipped.find(argv[place + 1]))
    return result


def hint(name: str) -> str:
    """A hint for an unknown flag that is the name of a field; empty for others."""
    found = [f"--config.{path}" for path in config_lib.paths_named(name)]
    return f"did you mean {' or '.join(found)}?" if found else ""


def _whole(path: str, text: str, right: str) -> str:
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        number = decimal.Decimal("nan")
    if not number.is_finite() or abs(number.adjusted()) > _DIGITS or number != number.to_integral_value():
        raise config_lib.ConfigError(f"{path}={text} is not right: it must be {right}.")
    return str(int(number))
