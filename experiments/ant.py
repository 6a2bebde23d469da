"""SafetyAntVelocity-v1 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(
        task="SafetyAntVelocity-v1",
        # Its speed passes the limit late, and its steps are slow: fewer behaviours, but long ones.
        collect={"steps": 3_000_000, "limits": (1.0,)},
    )
