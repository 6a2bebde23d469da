"""Shared by all commands: flags, one-sentence errors, exit codes."""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence

import jax
from absl import flags, logging

from traces_jax.host import arguments, errors, help

OK, BAD_INPUT, STOPPED = 0, 2, 3
# The system's code for "try again later".
LABELS_NEEDED = 75
_QUOTES = "\"'"


def run(main: Callable[..., int], *, takes_arguments: bool = False, more_help: Callable[[], str] = str) -> None:
    """Parses the command line and runs `main`. Bad input ends with one sentence and exit code 2.

    takes_arguments: whether `main` takes the list of positional arguments; otherwise there must be none. more_help: a
    part of --help that is not about flags.
    """
    # Silences library logs: orbax logs every damaged file several times. We print what matters to a user.
    logging.set_verbosity(logging.FATAL)
    if {"--help", "-h"} & set(sys.argv[1:]):
        doc = sys.modules["__main__"].__doc__ or ""
        print(help.page(doc, flags.FLAGS.get_key_flags_for_module(sys.argv[0]), more_help()))
        sys.exit(OK)
    before = signal.signal(signal.SIGINT, _interrupt())
    failed = True
    try:
        rest = _parse(sys.argv)
        if rest and not takes_arguments:
            raise errors.UserError(f"argument {rest[0]!r} is not a flag; see --help.")
        code = main(rest) if takes_arguments else main()
        failed = False
    except errors.USER_ERRORS as error:
        print(f"{_program()}: {error}", file=sys.stderr)
        code = BAD_INPUT
    except KeyboardInterrupt:
        print(_interrupted(), file=sys.stderr)
        code = STOPPED
    except BrokenPipeError:
        # The reader of our output has exited (for example `head`). This is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    except OSError as error:
        if error.filename is None:
            raise
        # An invalid file name, or a folder without read permission.
        print(f"{_program()}: {error.filename} cannot be used: {error.strerror}.", file=sys.stderr)
        code = BAD_INPUT
    sys.stdout.flush()
    if failed and jax.distributed.is_initialized():
        # An orderly end would wait for the other processes, and they wait for this one.
        os._exit(code)
    # Ctrl-C during interpreter shutdown ends the process without further output.
    signal.signal(signal.SIGINT, before if code != STOPPED else signal.SIG_DFL)
    sys.exit(code)


def _interrupt() -> Callable[[int, object], None]:
    """The default handler of Ctrl-C: the first raises, the second ends the process.

    Libraries may swallow the first one.
    """
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        del frame
        if received:
            os.write(2, f"{_interrupted()}\n".encode())
            os._exit(STOPPED)
        received.append(number)
        raise KeyboardInterrupt

    return note


def _interrupted() -> str:
    return f"\n{_program()}: interrupted; the same command begins again."


def _parse(argv: Sequence[str]) -> list[str]:
    """Parses the flags. Returns the positional arguments."""
    has_settings = "config" in flags.FLAGS
    try:
        return flags.FLAGS(arguments.readable(argv) if has_settings else argv)[1:]
    except (flags.Error, KeyError, AttributeError, TypeError, ValueError, OSError, ImportError, SyntaxError) as error:
        if isinstance(error, errors.USER_ERRORS):
            raise
        name = error.flagname if isinstance(error, flags.UnrecognizedFlagError) and has_settings else ""
        hint = arguments.hint(name)
        raise errors.UserError(f"--{name} is not a flag; {hint}" if hint else one_line(error)) from None


def one_line(error: Exception) -> str:
    """An exception's message as one line. Of ml_collections' hints, only the useful part."""
    text = str(error.args[0]) if error.args else type(error).__name__
    hint = re.search(r'Did you mean "(.+?)" instead of "(.+?)"', text)
    if hint:
        return f"field {hint[2]!r} does not exist; did you mean {hint[1]!r}?"
    if isinstance(error, KeyError | AttributeError) and re.fullmatch(r"[\"']*\w+[\"']*", text):
        return f"field {text.strip(_QUOTES)!r} does not exist; traces_jax/config/schema.py lists all."
    if isinstance(error, SyntaxError):
        return f"{error.filename} is not Python: {error.msg}, line {error.lineno}."
    return " ".join(text.split())


def _program() -> str:
    name = os.path.basename(sys.argv[0])
    return f"traces_jax.{name.removesuffix('.py')}"
