"""SafetyCarCircle2-v0 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(task="SafetyCarCircle2-v0")
