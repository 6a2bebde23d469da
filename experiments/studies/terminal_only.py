"""Labels of whole trajectories only, at most 5000 (the paper's terminal-only labels, four tasks)."""

from traces_jax.host.study.rows import Row, Study, labelled


def get_study():
    """Beside labels of prefixes of as many trajectories."""
    rows = []
    for task in ("Ant", "HalfCheetah", "AntRun", "CarRun"):
        many = labelled(task, 5000)
        rows += [
            Row(task, "traces", "full", {**many, "labels.terminal_only": True}, warm=True),
            Row(task, "traces", "prefixes", many, warm=True),
        ]
    return Study(rows, compare=[("traces full", "traces prefixes")])
