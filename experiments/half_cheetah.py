"""SafetyHalfCheetahVelocity-v1 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(
        task="SafetyHalfCheetahVelocity-v1",
        # The estimator and the refits of the run in docs/results.md.
        estimator={"decoder_reads": "summary", "initial_spread": 0.1},
        refit={"passes": 2, "steps": 6, "new_batch": 4, "stored_batch": 28},
        # Its speed passes the limit after one to two million steps: about half of the moments are beyond.
        collect={"steps": 3_000_000},
    )
