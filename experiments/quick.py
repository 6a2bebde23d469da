"""A run of about two minutes on two CPU cores: HalfCheetah learns to run. For a first look and for smoke tests."""

from traces_jax import config


def get_config():
    """HalfCheetah with smaller iterations, so that a few hundred thousand steps show something."""
    return config.make(
        task="SafetyHalfCheetahVelocity-v1",
        seeds=2,
        steps=600_000,
        environment={"count": 10},
    )
