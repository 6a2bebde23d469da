"""Rows of docs/results.md: every number worked out by hand."""

import json
import pathlib

import numpy as np
import pytest

from benchmarks import results_table
from traces_jax.host.report import groups
from traces_jax.host.report.read import Lane

BALL = "SafetyBallRun-v0"


def lane(seed: int = 0, *, run: str = "one", costs=(20.0, 26.0), source: str = "traces", **rows) -> Lane:
    """20 iterations, the last two of which are the last tenth."""
    filled = {
        "steps": 100.0 * np.arange(1, 21),
        "seconds": np.arange(1.0, 21.0),
        "episode/cost": np.concatenate([np.full(18, 90.0), [20.0, 30.0]]),
        "episode/accepted": np.concatenate([np.zeros(18), [1.0, 0.5]]),
        "estimate/probability": np.full(20, 0.7),
        "constraint/multiplier": np.full(20, 1.5),
        "labels/trajectories": 2.0 * np.arange(1, 21),
        **rows,
    }
    episodes = {"return": np.asarray([100.0, 200.0]), "cost": np.asarray(costs), "accepted": np.asarray(costs) <= 25}
    return Lane(run, BALL, source, seed, "", {}, 25.0, filled, episodes, None)


def rows(table, *lanes: Lane) -> list[list[str]]:
    grouped, _ = groups.make(lanes)
    return [[cell.text for cell in row] for row in table(grouped).rows]


def test_results_beside_the_papers():
    paper = "457.0 (30.1) / 24.7 (0.8), 2627 labelled"
    assert rows(results_table.results, lane(0), lane(1, costs=(10.0, 10.0))) == [
        ["BallRun", "2", "2,000", "0 min 20 s", "40 (0)", "150.0 (0.0)", "16.5 (6.5)", "75 % (25)", "-", paper]
    ]
    (alone,) = rows(results_table.results, lane(0))
    assert alone[4:8] == ["40", "150.0", "23.0", "50 %"], "one seed has no deviation"
    (oracle,) = rows(results_table.results, lane(source="oracle"))
    assert (oracle[0], oracle[-1]) == ("BallRun, PPO-Lagrangian", "579.5 (332.2) / 17.8 (28.9)")


@pytest.mark.parametrize(("costs", "bold"), [((20.0, 30.0), True), ((20.0, 31.0), False)])
def test_bold_is_within_the_limit(costs, bold):
    (row,) = results_table.results(groups.make([lane(costs=costs)])[0]).rows
    assert [cell.bold for cell in row[5:7]] == [bold, bold]


def test_every_seed_has_a_row():
    assert rows(results_table.seeds, lane(0), lane(1, costs=(10.0, 10.0))) == [
        ["BallRun", "0", "150.0", "23.0", "50 %"],
        ["BallRun", "1", "150.0", "10.0", "100 %"],
    ]


def test_the_last_tenth():
    """Costs 20 and 30: their mean is 25, their deviation 5."""
    assert rows(results_table.last_tenth, lane()) == [["BallRun", "25.0", "5.0", "75 %", "0.70", "1.50"]]
    quiet = {
        "episode/cost": np.concatenate([np.full(18, 90.0), [np.nan, 35.0]]),
        "estimate/probability": np.full(20, np.nan),
    }
    assert rows(results_table.last_tenth, lane(0), lane(1, **quiet)) == [
        ["BallRun", "30.0 (5.0)", "2.5 (2.5)", "75 % (0)", "0.70", "1.50 (0.00)"]
    ]


def test_wall_time_of_resumed_runs_and_of_many_folders():
    """Ten iterations until 100 s, then a new clock until 500 s: 600 s."""
    resumed = lane(seconds=np.concatenate([10.0 * np.arange(1, 11), 50.0 * np.arange(1, 11)]))
    assert rows(results_table.results, resumed)[0][3] == "10 min"
    several = [lane(seed, run=run) for seed, run in enumerate(("one", "two"))]
    assert rows(results_table.results, *several)[0][3] == "2 x 0 min 20 s"


def test_certificates_are_those_of_the_evaluation(tmp_path: pathlib.Path):
    evaluated = {
        "lanes": [
            {"lane": "seed=0", "certificate": {"labels": 60, "accepted": 52, "bound": 0.8}},
            {"lane": "seed=1", "certificate": {"labels": 60, "accepted": 57, "bound": 0.9}},
        ]
    }
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluated))
    own = [lane(seed, run=str(tmp_path)) for seed in (0, 1, 2)]
    assert rows(results_table.results, *own)[0][8] == "85 % (5)"
    assert rows(results_table.results, own[2])[0][8] == "-"
