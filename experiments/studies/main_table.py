"""The paper's main tables: twelve tasks, every method, from a fresh estimator and from one fitted to offline data."""

from traces_jax.host.study.rows import TASKS, Row, Study


def get_study():
    """Settings are those of the experiment files."""
    rows = []
    for task in TASKS:
        rows += [Row(task, "traces", "warm", warm=True), Row(task, "traces", "fresh"), Row(task, "oracle")]
    pairs = [("traces warm", "traces fresh"), ("traces warm", "oracle"), ("traces fresh", "oracle")]
    return Study(rows, compare=pairs)
