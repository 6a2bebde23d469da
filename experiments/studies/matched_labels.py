"""As many labels as RLSF used, or slightly fewer (the paper's matched label budget, three tasks)."""

from traces_jax.host.study.rows import Row, Study, labelled


def get_study():
    """The paper's budgets."""
    rows = []
    for task, budget in (("PointCircle1", 3000), ("PointCircle2", 3000), ("Walker2d", 10_000)):
        rows += [Row(task, "traces", "matched", labelled(task, budget), warm=True), Row(task, "oracle")]
    return Study(rows, compare=[("traces matched", "oracle")])
