"""SafetyHalfCheetahVelocity-v1 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(
        task="SafetyHalfCheetahVelocity-v1",
        # Its speed passes the limit after one to two million steps: about half of the moments are beyond.
        collect={"steps": 3_000_000},
    )
