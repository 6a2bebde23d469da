"""The paper's study with people: HalfCheetah must not fall, 100 labels a seed, 3 seeds, judged over 10 episodes each.

The scripted judge stands in for the person. With labels.by=people the same rows ask people.
"""

from traces_jax.host.study.rows import Row, Study


def get_study():
    """Every method has the same labels: of a tenth of all trajectories."""
    judged = {"labels.by": "traces_jax.tasks.fall:judge"}
    rows = [
        Row("CheetahFall", "traces", "", judged, seeds=3),
        # No step may be bad.
        Row("CheetahFall", "rlsf", "", {**judged, "rlsf.alpha": 0.1}, seeds=3),
        Row("CheetahFall", "ct", "", judged, seeds=3),
    ]
    return Study(rows)
