"""The wanted probability of an acceptable trajectory, with 1000 labelled (the paper's sensitivity to d)."""

from traces_jax.host.study.rows import Study, against, varied

_TASKS = ("Ant", "Hopper", "AntRun", "CarRun")


def get_study():
    """The paper's values."""
    values = (0.99, 0.9, 0.8, 0.5)
    rows = varied(_TASKS, "traces", "constraint.d", values, labels=1000, warm=True)
    return Study(rows, compare=against("traces d=0.9", rows))
