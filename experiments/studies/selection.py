"""Which trajectories are labelled: uncertain ones, random ones, or half of each, 1000 in all, on all tasks."""

from traces_jax.host.study.rows import TASKS, Row, Study, against, labelled


def get_study():
    """The paper compares the first two; half of each is our default."""
    rows = []
    for task in TASKS:
        few = labelled(task, 1000)
        rows += [
            Row(task, "traces", "uncertain", {**few, "query.random_share": 0.0}, warm=True),
            Row(task, "traces", "random", {**few, "query.rule": "random"}, warm=True),
            Row(task, "traces", "half", few, warm=True),
        ]
    return Study(rows, compare=against("traces random", rows))
