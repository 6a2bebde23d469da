"""The paper's study with people: HalfCheetah must not fall, 100 labels a seed, 3 seeds, judged over 10 episodes each.

The scripted judge stands in for the person. With labels.by=people the same rows ask people.
"""

from traces_jax.host.study.rows import Row, Study


def get_study():
    """As the paper; further methods have rows here once they are sources."""
    judged = {"labels.by": "traces_jax.tasks.fall:judge"}
    return Study([Row("CheetahFall", "traces", "", judged, seeds=3)])
