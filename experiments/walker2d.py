"""SafetyWalker2dVelocity-v1 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(task="SafetyWalker2dVelocity-v1")
