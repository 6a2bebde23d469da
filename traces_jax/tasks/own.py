"""Users' own code, named "module:Name": its import, and its exceptions as one sentence."""

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


class TaskError(ValueError):
    """Why a task, or a labeler, cannot be created, in one sentence."""


def is_own(name: str) -> bool:
    """Whether a name has the form module:Name, which names something outside this package."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def member(name: str) -> str:
    """The part of module:Name after the colon."""
    return name.partition(":")[2]


def load(name: str, what: str) -> Any:
    """What a name module:Name refers to; None if the module has no such name. what: begins messages."""
    module_name = name.partition(":")[0]
    with users_code(f"{what} {name!r} cannot be loaded"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise  # The module exists; one of its imports does not.
            raise TaskError(
                f"{what} {name!r} cannot be loaded: there is no module {error.name!r}; "
                f"start from the folder that has it."
            ) from None
    return getattr(module, member(name), None)


@contextlib.contextmanager
def users_code(sentence: str) -> Iterator[None]:
    """Converts any exception into a TaskError: the given sentence, the exception, and the line that raised it."""
    try:
        yield
    except TaskError:
        raise
    # A script that exits when it is imported raises SystemExit.
    except (Exception, SystemExit) as error:  # noqa: BLE001  others' code may raise anything
        raise TaskError(f"{sentence}: {_described(error)}{_place(error)}.") from None


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
