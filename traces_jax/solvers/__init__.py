"""Constrained policy optimisation: advantages in, a better policy out."""
