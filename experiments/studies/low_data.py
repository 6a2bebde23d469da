"""Few labels: at most 1000 trajectories, on all tasks (the paper's low data regime)."""

from traces_jax.host.study.rows import TASKS, Row, Study, labelled


def get_study():
    """Beside as many labels as the experiment files allow."""
    rows = []
    for task in TASKS:
        rows += [
            Row(task, "traces", "1000 labelled", labelled(task, 1000), warm=True),
            Row(task, "traces", "warm", warm=True),
        ]
    return Study(rows, compare=[("traces 1000 labelled", "traces warm")])
