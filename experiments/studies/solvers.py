"""Every solver with the true cost (the paper's oracle solvers, and those that come with the same parts)."""

from traces_jax.host.study.rows import Row, Study

_PAPER = ("cppo_pid", "cup", "focops", "trpo_saute")
_OTHERS = ("trpo_lag", "cpo", "p3o", "ppo_saute", "ppo", "trpo")


def get_study():
    """The four Run tasks with all, HalfCheetah and Ant with the paper's. Each is compared with PPO-Lagrangian."""
    others = [f"oracle+{solver}" for solver in (*_PAPER, *_OTHERS)]
    rows = [Row(task, method) for task in ("BallRun", "CarRun", "DroneRun", "AntRun") for method in ("oracle", *others)]
    rows += [Row(task, f"oracle+{solver}", seeds=2) for task in ("HalfCheetah", "Ant") for solver in _PAPER]
    return Study(rows, compare=[(method, "oracle") for method in others])
