"""SafetyCarRun-v0 with the paper's sizes and steps."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(
        task="SafetyCarRun-v0",
        steps=2_000_000,
        environment={"count": 10, "steps": 200},
        policy={"hidden": (32, 32)},
        critic={"hidden": (32, 32)},
        ppo={"passes": 20},
        labels={"interval": 5},
        # Iterations of a fraction of a second.
        run={"chunk": 5, "checkpoint_every": 50},
        # By then the car without a limit is too fast nearly all the time.
        collect={"steps": 200_000},
    )
