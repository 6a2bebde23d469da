"""SafetyAntRun-v0 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(
        task="SafetyAntRun-v0",
        steps=2_000_000,
        environment={"count": 10, "steps": 200},
        ppo={"passes": 20},
        labels={"interval": 5},
        # Iterations of a fraction of a second.
        run={"chunk": 5, "checkpoint_every": 50},
    )
