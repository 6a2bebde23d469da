"""A few minutes on two CPU cores: a ball learns from labels how fast it may roll. For a first look."""

from traces_jax import config


def get_config():
    """The first part of `ball_run.py`, with two seeds."""
    return config.make(
        task="SafetyBallRun-v0",
        seeds=2,
        steps=400_000,
        environment={"count": 10, "steps": 100},
        policy={"hidden": (32, 32), "min_std": 0.05},
        critic={"hidden": (32, 32)},
        ppo={"passes": 20, "actor_lr": 1e-4},
        lagrange={"initial": 1.0},
        labels={"interval": 5},
    )
