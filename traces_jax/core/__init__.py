"""The training step and what every part of it shares: rollouts, episodes, networks, statistics, random streams."""
