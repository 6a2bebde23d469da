"""What sources with a learned cost keep, and what they say of trajectories."""

from typing import Any

import flax.struct
import jax

from traces_jax.core import episodes, optimize, spanning
from traces_jax.feedback.trajectories import Candidates, Ring, Trajectories
from traces_jax.sources import correction


@flax.struct.dataclass
class LabelledState:
    """The state of a cost model and its labels.

    Attributes:
      fitted: the cost model and its optimizer state.
      pool: trajectories since the last query, with simulated labels that are not read yet.
      store: labelled trajectories.
      judged: estimated summed costs of the last finished episodes, and their probabilities of violation.
      residuals: how wrong the estimator was on the last trajectories that were labelled at random.
      seen: [] trajectories that were ever in the pool.
      due: [] how many of them were due for labelling by the last query. Fewer are labelled if their score was too low
        or the budget is spent.
      labelled: [] trajectories labelled so far.
      queries: [] single (prefix) labels so far.
      notes: what the source notes of labelled trajectories in order to choose others; None if nothing.
      open: the episodes that go on in the next rollout; None if none ever does.
    """

    fitted: optimize.Trained
    pool: Ring[Candidates]
    store: Ring[Trajectories]
    judged: episodes.PolicyWindows
    residuals: correction.Residuals
    seen: jax.Array
    due: jax.Array
    labelled: jax.Array
    queries: jax.Array
    notes: Any
    open: spanning.Open | None


@flax.struct.dataclass
class Score:
    """What a source says of N trajectories before they are labelled.

    Attributes:
      uncertainty: [N].
      worth: [N] which of them are worth a label.
      expected: [N, P] log-probabilities that their labels are "acceptable".
    """

    uncertainty: jax.Array
    worth: jax.Array
    expected: jax.Array
