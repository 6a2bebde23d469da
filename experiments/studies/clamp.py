"""The lower bound of log credits, with 1000 labelled (the paper's sensitivity to clamping)."""

from traces_jax.host.study.rows import Study, against, varied

_TASKS = ("Ant", "Hopper", "AntRun", "CarRun")


def get_study():
    """The paper's values."""
    rows = varied(_TASKS, "traces", "estimator.clamp", (-7.0, -10.0), labels=1000, warm=True)
    return Study(rows, compare=against("traces clamp=-7.0", rows))
