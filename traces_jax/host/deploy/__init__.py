"""Trained policies outside of training: in Python, and as files for other programs."""
