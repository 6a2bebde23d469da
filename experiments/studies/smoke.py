"""Two minutes on two cores: every kind of step, with runs too short to learn anything."""

from traces_jax.host.study.rows import Row, Study

_SHORT = {
    "steps": 20_000,
    "environment.count": 4,
    "ppo.minibatch": 50,
    "ppo.passes": 4,
    "estimator.hidden": 8,
    "run.chunk": 5,
    "run.checkpoint_every": 10,
    "run.tensorboard": False,
    "collect.steps": 8_000,
    "collect.moments": 3,
    "pretrain.steps": 200,
    "pretrain.batch": 8,
}


def get_study():
    """One task, from the true cost and from labels, fresh and warm."""
    rows = [
        Row("BallRun", "traces", "warm", _SHORT, seeds=2, warm=True, episodes=30),
        Row("BallRun", "traces", "fresh", _SHORT, seeds=2),
        Row("BallRun", "oracle", "", _SHORT, seeds=2),
    ]
    return Study(rows, compare=[("traces warm", "traces fresh"), ("traces fresh", "oracle")])
