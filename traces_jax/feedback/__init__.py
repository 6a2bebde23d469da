"""Feedback on trajectories as array operations: cutting them out of rollouts, labels, picking, keeping."""
