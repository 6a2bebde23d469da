"""Labels as JSON lines, so that labels made here can be used elsewhere and the other way round. See docs/labeling.md.

Each line is one answer. A clip of a run is named by lane, iteration, environment and first; an episode of recorded data
by episode. verdict is accept, reject, from or unsure; "from" has a step, the first violating one.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from traces_jax.host import errors, files
from traces_jax.host.label.store import FROM, VERDICTS, Identity, Said

VERSION = 1
_LARGEST_FILE, _LONGEST_LINE = 1 << 26, 1 << 12
_LARGEST_NUMBER = 2**31 - 1
_CLIP = ("lane", "iteration", "environment", "first")
# Fields that may be missing, and what they are then.
_DEFAULTS: dict[str, Any] = {
    "annotator": "unknown",
    "repeat": False,
    "shown_at": 0.0,
    "answered_at": 0.0,
    "replays": 0,
    "length": None,
    "step": None,
}


def write(path: pathlib.Path, rows: Sequence[Mapping[str, Any]], **facts: Any) -> None:
    """Writes answers of `Store.rows`. facts: the same in every line, such as the task."""
    lines = [json.dumps({"version": VERSION, **facts, **row, "repeat": bool(row["repeat"])}) for row in rows]
    files.write_text(path, "".join(f"{line}\n" for line in lines))


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """All answers of a file, checked, with defaults for what is missing."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            raise errors.UserError(f"labels {path} are not right: there is no file of at most 64 MB.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.UserError(f"labels {path} cannot be read: {error}.") from None
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(_row(line))
            except (ValueError, RecursionError) as error:
                raise errors.UserError(f"labels {path}, line {number}: {' '.join(str(error).split())[:160]}.") from None
    return rows


def _row(line: str) -> dict[str, Any]:
    """One answer. Raises ValueError, in a few words, if it is not right."""
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"it has more than {_LONGEST_LINE} characters")
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    if found.get("version", VERSION) != VERSION:
        raise ValueError(f"version {found['version']!r} is unknown; {VERSION} would be right")
    row = {**_DEFAULTS, **found}
    if row.get("verdict") not in VERDICTS:
        raise ValueError(f"verdict {row.get('verdict')!r} is not one of {', '.join(VERDICTS)}")
    names = ("episode",) if "episode" in row else _CLIP
    for name in names:
        right = isinstance(row.get(name), str) if name == "lane" else _is_number(row.get(name))
        if not right:
            raise ValueError(f"{name} {row.get(name)!r} is not right; name a clip by {', '.join(_CLIP)}, or episode")
    if (row["verdict"] == FROM) != (row["step"] is not None) or not (row["step"] is None or _is_number(row["step"])):
        raise ValueError(f"step {row['step']!r} is not right; the verdict {FROM!r} has one, and no other")
    if not isinstance(row["annotator"], str) or not isinstance(row["repeat"], bool):
        raise ValueError("annotator must be text, and repeat true or false")
    for name in ("shown_at", "answered_at", "replays", "length"):
        if not (name == "length" and row[name] is None) and not isinstance(row[name], int | float):
            raise ValueError(f"{name} {row[name]!r} is not a number")
    row.setdefault("id", hashlib.sha256(line.strip().encode()).hexdigest()[:32])
    if not isinstance(row["id"], str):
        raise ValueError("id must be text")
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_NUMBER


def clips(rows: Sequence[Mapping[str, Any]]) -> dict[Identity, list[Said]]:
    """The answers to each clip of a run, without repeats."""
    found: dict[Identity, list[Said]] = {}
    for row in rows:
        if "episode" not in row and not row["repeat"]:
            clip = Identity(*(row[name] for name in _CLIP))
            found.setdefault(clip, []).append(Said(row["verdict"], row["step"]))
    return found


def episodes(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Said]]:
    """The answers to each episode of recorded data."""
    found: dict[int, list[Said]] = {}
    for row in rows:
        if "episode" in row and not row["repeat"]:
            found.setdefault(row["episode"], []).append(Said(row["verdict"], row["step"]))
    return found
