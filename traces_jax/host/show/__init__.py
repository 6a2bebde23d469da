"""Runs as text in a terminal, episodes as video."""
