"""Wrong labels, with 1000 trajectories labelled (the paper's sensitivity to labeling noise)."""

from traces_jax.host.study.rows import Study, against, varied

_TASKS = ("Ant", "Hopper", "AntRun", "CarRun")


def get_study():
    """The paper's values. Labels of the offline data are as wrong as those of the run."""
    values = (0.0, 0.05, 0.1, 0.2)
    rows = varied(_TASKS, "traces", "labels.noise", values, labels=1000, warm=True)
    return Study(rows, compare=against("traces noise=0.0", rows))
