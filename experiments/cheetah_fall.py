"""SafetyHalfCheetahFall-v0, labelled by people: 100 clips of 150 steps for each seed, one after each iteration."""

from traces_jax import config


def get_config():
    """Only what differs from the defaults."""
    return config.make(
        task="SafetyHalfCheetahFall-v0",
        steps=150_000,
        environment={"count": 10, "steps": 150},
        # There is no reward: so large a multiplier leaves the cost alone to be learned from.
        lagrange={"initial": 1e9, "maximum": 1e9},
        labels={"by": "people"},
        query={"fraction": 0.1, "budget": 100},
        # One violating step is enough. Only evaluations and the oracle read this.
        constraint={"cost_limit": 0.0},
        run={"evaluation_episodes": 10},
    )
