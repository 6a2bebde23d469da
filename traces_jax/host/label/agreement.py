"""How well answers agree: of one annotator with himself on hidden repeats, and of annotators with each other."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from traces_jax.host.label.store import ACCEPT, UNSURE


@dataclasses.dataclass(frozen=True)
class Agreement:
    """count: clips judged twice; share: of equal judgements; kappa: Cohen's, NaN if it is undefined."""

    count: int
    share: float
    kappa: float


def agreement(pairs: Sequence[tuple[bool, bool]]) -> Agreement:
    """The agreement of two judgements of each clip, true for a violation.

    Kappa is (observed - chance) / (1 - chance), where chance is the agreement of two judges who say "violation" as
    often as these, but at random. It is undefined if both always say the same.
    """
    count = len(pairs)
    if not count:
        return Agreement(0, math.nan, math.nan)
    observed = sum(one == other for one, other in pairs) / count
    first, second = (sum(pair[place] for pair in pairs) / count for place in (0, 1))
    chance = first * second + (1 - first) * (1 - second)
    return Agreement(count, observed, (observed - chance) / (1 - chance) if chance < 1 else math.nan)


def with_self(rows: Sequence[Mapping[str, Any]], annotator: str) -> Agreement:
    """An annotator's agreement with himself on hidden repeats. rows: of `Store.rows`."""
    own = [row for row in rows if row["annotator"] == annotator]
    first, again = (_judged([row for row in own if bool(row["repeat"]) == repeat]) for repeat in (False, True))
    return agreement([(first[clip], again[clip]) for clip in again if clip in first])


def between(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Agreement]:
    """The agreement of each two annotators on the clips that both have judged."""
    first = [row for row in rows if not row["repeat"]]
    by = {name: _judged([row for row in first if row["annotator"] == name]) for name in annotators(rows)}
    return {
        (one, other): agreement([(by[one][clip], by[other][clip]) for clip in by[one] if clip in by[other]])
        for one, other in itertools.combinations(by, 2)
    }


def annotators(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Their names, sorted."""
    return sorted({row["annotator"] for row in rows})


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything about the answers, as JSON: numbers that are not defined are None."""
    return {
        "annotators": [
            {
                "name": name,
                "answers": sum(row["annotator"] == name and not row["repeat"] for row in rows),
                "unsure": sum(row["annotator"] == name and row["verdict"] == UNSURE for row in rows),
                "self": _json(with_self(rows, name)),
            }
            for name in annotators(rows)
        ],
        "pairs": [{"names": list(names), **_json(found)} for names, found in between(rows).items() if found.count],
    }


def sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same in words, for a report."""
    found = []
    for name in annotators(rows):
        answers, own = sum(row["annotator"] == name and not row["repeat"] for row in rows), with_self(rows, name)
        again = f", {_words(own)} when shown again" if own.count else ""
        found.append(f"{name} labelled {answers} clips{again}")
    pairs = between(rows).items()
    return found + [f"{' and '.join(names)} agree: {_words(own)}" for names, own in pairs if own.count]


def _words(found: Agreement) -> str:
    kappa = "" if math.isnan(found.kappa) else f" (kappa {found.kappa:.2f})"
    return f"{round(found.share * found.count)} of {found.count} the same{kappa}"


def _judged(rows: Sequence[Mapping[str, Any]]) -> dict[tuple, bool]:
    """Whether each clip was judged a violation, by the clip's identity. Without those that nobody could judge."""
    return {
        (row["lane"], row["iteration"], row["environment"], row["first"]): row["verdict"] != ACCEPT
        for row in rows
        if row["verdict"] != UNSURE
    }


def _json(found: Agreement) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in dataclasses.asdict(found).items()
    }
