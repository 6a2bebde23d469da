"""study.json: what a report has to know of a study, whether it is finished or not."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable

from traces_jax.host import errors, files
from traces_jax.host.study.plan import Step
from traces_jax.host.study.rows import Study

NAME = "study.json"


@dataclasses.dataclass(frozen=True)
class Record:
    """Run folder -> the name of its row's setting; and pairs of (method, setting) that are compared, if not all."""

    runs: dict[pathlib.Path, str]
    compare: tuple[tuple[str, str], ...]


def write(root: pathlib.Path, study: Study, steps: Iterable[Step]) -> None:
    """Notes the runs of a plan."""
    runs = {step.output: step.row.name for step in steps if step.row}
    text = json.dumps({"runs": runs, "compare": list(study.compare)}, indent=2)
    files.write_text(root / NAME, text + "\n")


def read(root: pathlib.Path) -> Record | None:
    """What a study folder says; None for other folders."""
    if not os.path.lexists(root / NAME):
        return None
    found = files.read_json(root / NAME)
    try:
        runs = {root / str(output): str(name) for output, name in found["runs"].items()}
        pairs = tuple((str(first), str(second)) for first, second in found["compare"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise errors.UserError(f"{root / NAME} is damaged: it holds no runs to compare.") from None
    return Record(runs, pairs)
