"""SafetyAntVelocity-v1 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(
        task="SafetyAntVelocity-v1",
        # The refits of the run in docs/results.md.
        refit={"passes": 2, "steps": 4, "new_batch": 4, "stored_batch": 12},
        # Its speed passes the limit after two to three million steps: a third to half of the moments are beyond.
        collect={"steps": 4_000_000},
    )
