"""Safe reinforcement learning in one compiled program."""

__version__ = "0.1.0"
