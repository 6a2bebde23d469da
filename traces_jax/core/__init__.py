"""The training step and its shared parts: rollouts, episodes, networks, statistics, random streams."""
