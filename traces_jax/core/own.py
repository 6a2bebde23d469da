"""Code from outside this package, named "module:Name": loads it, and says in one sentence what is wrong."""

import contextlib
import importlib
import os
import pathlib
import re
import sysconfig
import traceback
from collections.abc import Iterator
from typing import Any

# Path prefixes of files that are not the user's: this package and Python's import system; installed packages.
_OURS = (f"{pathlib.Path(__file__).parents[1]}{os.sep}", "<frozen importlib", importlib.__file__)
_INSTALLED = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib"))
# Maximum length of a quoted exception message: some contain whole arrays.
_LONGEST_MESSAGE = 300


class OwnError(ValueError):
    """Why a user's code cannot be used, in one sentence."""


def is_own(name: str) -> bool:
    """Whether a name has the form module:Name, which names something outside this package."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def load(what: str, name: str, base: type, error: type[OwnError]) -> type:
    """The class that a name names, which must be derived from `base`. what, error: see `find`."""
    found = find(what, name, error)
    if not (isinstance(found, type) and issubclass(found, base)):
        public = f"{base.__module__.rpartition('.')[0]}.{base.__name__}"
        raise error(f"{what} {name!r} is not right: {name.partition(':')[2]} must be a class derived from {public}.")
    if missing_methods := sorted(getattr(found, "__abstractmethods__", ())):
        raise error(f"{what} {name!r} is not right: {found.__name__} must define {', '.join(missing_methods)}.")
    return found


def find(what: str, name: str, error: type[OwnError]) -> Any:
    """What a name names; None if its module has no such name.

    what: what the name is of, as the user calls it; error: the exception to raise.
    """
    module_name, own_name = name.split(":")
    with users_code(f"{what} {name!r} cannot be loaded", error):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as missing:
            if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
                raise  # The module exists; one of its imports does not.
            raise error(
                f"{what} {name!r} cannot be loaded: there is no module {missing.name!r}; "
                "start from the folder that has it."
            ) from None
    return getattr(module, own_name, None)


@contextlib.contextmanager
def users_code(sentence: str, error: type[OwnError]) -> Iterator[None]:
    """Converts any exception into an OwnError: the given sentence, the exception, and the line that raised it."""
    try:
        yield
    except OwnError:
        raise
    # A script that exits when it is imported raises SystemExit.
    except (Exception, SystemExit) as raised:  # noqa: BLE001  others' code may raise anything
        raise error(f"{sentence}: {_described(raised)}{_place(raised)}.") from None


def _described(error: BaseException) -> str:
    """Type and message of an exception, in one line."""
    message = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split()).rstrip(".")
    message = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE].rstrip()} ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _place(error: BaseException) -> str:
    """The innermost line of the user's code that raised, as text; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)] or frames
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
