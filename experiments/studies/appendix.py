"""The paper's appendix on two tasks in one study: d, wrong labels, clamp, selection, full trajectories, b = 50.

d = 0.9, right labels, a clamp of -7 and half of the labels for uncertain trajectories are one row, the base.
"""

from typing import Any

from traces_jax.host.study.rows import Row, Study, against, labelled

# 1000 labelled trajectories each.
_FEW: dict[str, dict[str, Any]] = {
    "base": {},
    "d=0.99": {"constraint.d": 0.99},
    "d=0.8": {"constraint.d": 0.8},
    "d=0.5": {"constraint.d": 0.5},
    "noise=0.05": {"labels.noise": 0.05},
    "noise=0.1": {"labels.noise": 0.1},
    "noise=0.2": {"labels.noise": 0.2},
    "clamp=-10": {"estimator.clamp": -10.0},
    "uncertain": {"query.random_share": 0.0},
    "random": {"query.rule": "random"},
}
# 5000 each.
_MANY: dict[str, dict[str, Any]] = {
    "full": {"labels.terminal_only": True},
    "b=50": {"constraint.cost_limit": 50.0},
}


def get_study():
    """As in the paper, estimators start from offline data. Their labels are as wrong, or as few, as the run's."""
    rows = []
    for task in ("CarRun", "AntRun"):
        for labels, settings in ((1000, _FEW), (5000, _MANY)):
            common = {**labelled(task, labels), "run.evaluation_episodes": 100}
            rows += [Row(task, "traces", name, {**common, **own}, warm=True) for name, own in settings.items()]
        rows.append(Row(task, "oracle", "b=50", {**_MANY["b=50"], "run.evaluation_episodes": 100}))
    pairs = against("traces base", [row for row in rows if row.method == "traces"])
    return Study(rows, compare=[*pairs, ("traces random", "traces uncertain"), ("traces b=50", "oracle b=50")])
