"""How steps ended, as their folders say, and how far those are that go on."""

import dataclasses
import enum
import json
import os
import pathlib
import re

from traces_jax.host import cli, errors, files, locks
from traces_jax.host.study.plan import Step

LOCK, LOG, _OUTCOME = "lock", "log.txt", "outcome.json"
# Bytes at the end of a log that are read.
_TAIL = 4096
# What `progress.Bar` prints where there is no terminal.
_PROGRESS = re.compile(r"^\w+ (\d+)/(\d+) .* (\S+) left$", re.MULTILINE)


class State(enum.StrEnum):
    """Of a step."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Seen:
    """A step as its files show it. done, total: of its own unit, such as iterations; left: as it says, h:mm:ss."""

    state: State
    done: int | None = None
    total: int | None = None
    left: str = ""
    last_line: str = ""


def forget(folder: pathlib.Path) -> None:
    """Before a new attempt."""
    (folder / _OUTCOME).unlink(missing_ok=True)


def write(folder: pathlib.Path, code: int) -> None:
    """After an attempt. code: its exit code."""
    files.write_text(folder / _OUTCOME, json.dumps({"code": code}) + "\n")


def code(folder: pathlib.Path) -> int | None:
    """The exit code of the last attempt; None if there was none, or it was killed."""
    path = folder / _OUTCOME
    try:
        found = files.read_json(path)["code"] if path.exists() else None
    except (errors.UserError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def is_done(root: pathlib.Path, step: Step) -> bool:
    """Whether it ended well and what it made is there."""
    return code(root / step.folder) == cli.OK and (root / step.output).exists()


def look(root: pathlib.Path, step: Step) -> Seen:
    """A step as it is now. root: the study's folder."""
    folder = root / step.folder
    if not folder.is_dir():
        return Seen(State.WAITING)
    if locks.is_held(folder / LOCK):
        return _running(folder)
    if is_done(root, step):
        return Seen(State.DONE)
    if code(folder) not in (None, cli.OK, cli.STOPPED):
        return Seen(State.FAILED, last_line=last_line(folder))
    return dataclasses.replace(_running(folder), state=State.WAITING, left="")


def _running(folder: pathlib.Path) -> Seen:
    found = _PROGRESS.findall(_tail(folder))
    if not found:
        return Seen(State.RUNNING)
    done, total, left = found[-1]
    return Seen(State.RUNNING, int(done), int(total), left)


def last_line(folder: pathlib.Path) -> str:
    """Of its log."""
    lines = [line for line in _tail(folder).splitlines() if line.strip()]
    return "".join(letter for letter in lines[-1].strip() if letter.isprintable()) if lines else ""


def _tail(folder: pathlib.Path) -> str:
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
