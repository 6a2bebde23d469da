"""Steps between labelled prefixes, with 1000 labelled (the paper's sensitivity to the checkpoint interval)."""

from traces_jax.host.study.rows import Study, against, varied

_TASKS = ("Ant", "HalfCheetah", "Hopper", "Walker2d")


def get_study():
    """The paper's values."""
    rows = varied(_TASKS, "traces", "labels.interval", (20, 40, 100), labels=1000, warm=True)
    return Study(rows, compare=against("traces interval=20", rows))
