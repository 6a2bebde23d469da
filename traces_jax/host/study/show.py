"""A study at a glance: for people, and for programs."""

import collections
import json
import pathlib
from collections.abc import Iterable, Mapping

import rich.table

from traces_jax.host.study import outcomes
from traces_jax.host.study.outcomes import Seen, State
from traces_jax.host.study.plan import Step

# Rows of the live table; a terminal has no more, and counts tell the rest.
_MOST = 20


def look(root: pathlib.Path, steps: Iterable[Step]) -> dict[str, Seen]:
    """Every step as it is now."""
    return {step.name: outcomes.look(root, step) for step in steps}


def summary(seen: Mapping[str, Seen]) -> str:
    """Counts, in one line."""
    counts = collections.Counter(own.state for own in seen.values())
    return ", ".join(f"{counts[state]} {state}" for state in State) + f" of {len(seen)} steps"


def table(seen: Mapping[str, Seen], states: Iterable[State]) -> rich.table.Table:
    """Steps in some states, in the order of the states."""
    made = rich.table.Table("step", "state", "progress", "left", "last line", title=summary(seen))
    chosen = [(name, own) for state in states for name, own in seen.items() if own.state == state]
    for name, own in chosen[:_MOST]:
        progress = f"{own.done}/{own.total}" if own.total else ""
        made.add_row(name, own.state, progress, own.left, own.last_line)
    if len(chosen) > _MOST:
        made.add_row(f"and {len(chosen) - _MOST} more", "", "", "", "")
    return made


def as_json(seen: Mapping[str, Seen], steps: Mapping[str, Step]) -> str:
    """Everything, for programs."""
    counts = collections.Counter(own.state for own in seen.values())
    rows = [
        {
            "name": name,
            "command": steps[name].module,
            "state": own.state,
            "done": own.done,
            "total": own.total,
            "left": own.left or None,
            "last_line": own.last_line or None,
            "output": steps[name].output,
        }
        for name, own in seen.items()
    ]
    return json.dumps({"counts": {state: counts[state] for state in State}, "steps": rows}, indent=2)
