"""Answers as labels."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from traces_jax.config import Config
from traces_jax.host.label.store import ACCEPT, FROM, REJECT, UNSURE, Said
from traces_jax.sources import Labelled


def from_steps(first: np.ndarray) -> list[list[Said]]:
    """First violating steps [N], -1 for none, as answers."""
    return [[Said(FROM, int(step)) if step >= 0 else Said(ACCEPT)] for step in first]


def labels(source: Labelled, config: Config, answers: Sequence[Said], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels [P] of a trajectory, and which of them there are [P], by the majority of its answers.

    A rejection without a step says nothing about parts of the trajectory, "unsure" nothing at all. Where as many accept
    as reject, there is no label.
    """
    voters = [answer for answer in answers if answer.verdict != UNSURE]
    count = len(source.ends(config))
    if not voters:
        return np.zeros(count, np.float32), np.zeros(count, bool)
    steps = [-1 if answer.verdict == ACCEPT else (answer.step or 0) for answer in voters]
    told = source.told(
        config,
        jnp.asarray(steps),
        jnp.full(len(voters), length),
        known=jnp.asarray([answer.verdict != REJECT for answer in voters]),
    )
    votes = np.sum(np.where(told.mask, 2 * np.asarray(told.labels) - 1, 0), axis=0)
    return (votes > 0).astype(np.float32), votes != 0
