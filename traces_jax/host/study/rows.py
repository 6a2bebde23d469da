"""What a study file returns: data, and nothing that is done with them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

# The paper's, in its order. Each has an experiment file.
TASKS = (
    "PointCircle1", "PointCircle2", "CarCircle1", "CarCircle2", "Ant", "HalfCheetah", "Hopper", "Walker2d",
    "AntRun", "BallRun", "CarRun", "DroneRun",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """One task, method and setting, with some seeds. Each seed is a run with a folder of its own.

    Attributes:
      task: a name such as "BallRun", whose experiment file is experiments/ball_run.py; or a file that ends with .py.
      method: its method.source, or "source+solver" such as "oracle+cup"; `--methods` selects by it.
      name: what the report calls the setting; empty if a method has one only.
      settings: what differs from the experiment file, dotted path -> value.
      seeds: how many. `--seeds` says otherwise.
      warm: whether its estimator is fitted to offline data first. Rows that need the same data, or the same estimator,
        share it.
      episodes: of the offline data.
    """

    task: str
    method: str
    name: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int = 4
    warm: bool = False
    episodes: int = 1000

    @property
    def title(self) -> str:
        """Method and setting, as `Study.compare` names them."""
        return f"{self.method} {self.name}".strip()


@dataclasses.dataclass(frozen=True)
class Study:
    """All rows, and pairs of titles that the report compares; every pair if none are given."""

    rows: Sequence[Row]
    compare: Sequence[tuple[str, str]] = ()


def labelled(task: str, count: int) -> dict[str, Any]:
    """Settings for `count` labelled trajectories, spread over a run of the paper's length.

    A budget alone would be spent early: the estimator would not see how the policy goes on.
    """
    trajectories = 20_000 if "Circle" in task else 10_000
    return {"query.budget": count, "query.fraction": count / trajectories}


def varied(
    tasks: Sequence[str], method: str, path: str, values: Sequence[Any], *, labels: int | None = None, **common: Any
) -> list[Row]:
    """Rows that differ in one setting, named after it. labels: see `labelled`; common: other fields of all rows."""
    name, shared = path.rpartition(".")[2], dict(common.pop("settings", {}))
    return [
        Row(
            task,
            method,
            f"{name}={value}",
            {**(labelled(task, labels) if labels else {}), **shared, path: value},
            **common,
        )
        for task in tasks
        for value in values
    ]


def against(title: str, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Every other title compared with this one."""
    return [(other, title) for other in dict.fromkeys(row.title for row in rows) if other != title]
