"""Answers as labels of prefixes."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from traces_jax.feedback import labelers
from traces_jax.feedback.trajectories import prefix_mask
from traces_jax.host.label.store import ACCEPT, FROM, REJECT, UNSURE, Said


def from_steps(first: np.ndarray) -> list[list[Said]]:
    """First violating steps [N], -1 for none, as answers."""
    return [[Said(FROM, int(step)) if step >= 0 else Said(ACCEPT)] for step in first]


def prefixes(answers: Sequence[Said], length: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels [P] of a trajectory's prefixes, and which are labelled [P], by the majority of its answers.

    A rejection without a step says nothing about prefixes shorter than the whole, "unsure" nothing at all. Where as
    many accept as reject, there is no label.
    """
    existing = np.asarray(prefix_mask(jnp.asarray([length]), ends))[0]
    whole = np.arange(len(ends)) == len(ends) - 1
    votes, voters = np.zeros(len(ends)), np.zeros(len(ends))
    for answer in answers:
        if answer.verdict == UNSURE:
            continue
        first = -1 if answer.verdict == ACCEPT else (answer.step or 0)
        own = labelers.prefix_labels(jnp.asarray([first]), jnp.asarray([length]), ends)[0]
        counts = existing & whole if answer.verdict == REJECT else existing
        votes += np.where(counts, 2 * np.asarray(own) - 1, 0)
        voters += counts
    return (votes > 0).astype(np.float32), (voters > 0) & (votes != 0)
