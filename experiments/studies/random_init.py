"""Without offline data: the estimator starts fresh (the paper's random initialization, four tasks)."""

from traces_jax.host.study.rows import Row, Study


def get_study():
    """Beside an estimator that was fitted to offline data."""
    rows = []
    for task in ("Ant", "HalfCheetah", "AntRun", "CarRun"):
        rows += [Row(task, "traces", "fresh"), Row(task, "traces", "warm", warm=True)]
    return Study(rows, compare=[("traces fresh", "traces warm")])
