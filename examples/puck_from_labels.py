"""The puck of examples/puck.py learns from labels: it is never told where the hot disc is. Train with it:

  python -m traces_jax.train --config examples/puck_from_labels.py

Only the labeler knows the cost: it accepts an episode with at most one step on the disc.
"""

from traces_jax import config


def get_config():
    """A short run: about a minute on two cores."""
    return config.make(
        task="examples.puck:Puck",
        steps=200_000,
        environment={"count": 10, "steps": 100},
        policy={"hidden": (32, 32)},
        critic={"hidden": (32, 32)},
        ppo={"passes": 20},
        constraint={"cost_limit": 1.0},
        labels={"interval": 5},
        run={"chunk": 5, "checkpoint_every": 50},
    )
