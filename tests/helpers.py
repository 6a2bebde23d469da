"""What several test files share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax import config as config_lib
from traces_jax.host import build
from traces_jax.learner import LearnerState
from traces_jax.rollout import Truth


def make_config(**changes: Any) -> config_lib.Config:
    """Defaults with `changes` applied, validated."""
    return config_lib.from_dict(config_lib.make(**changes).to_dict())


def train(config: config_lib.Config) -> tuple[build.Built, LearnerState, dict[str, np.ndarray]]:
    """The whole run of a config. Returns what was built, the last state [S, ...] and all rows [S, iterations]."""
    built = build.build(config)
    state = built.program.init()
    chunks = []
    for start in range(0, config.iterations, config.run.chunk):
        state, rows = built.program.chunk(state, start)
        chunks.append(jax.device_get(rows))
    return built, state, {name: np.concatenate([rows[name] for rows in chunks], axis=1) for name in chunks[0]}


def make_truth(ended, *, returns=0.0, costs=0.0, lengths=0.0, broken=0.0) -> Truth:
    """Episode ends [T, B] with the sums that belong to them."""
    ended = jnp.asarray(ended, bool)
    spread = lambda values: jnp.broadcast_to(jnp.asarray(values, jnp.float32), ended.shape)  # noqa: E731
    return Truth(
        cost=spread(0.0),
        ended=ended,
        broken=spread(broken),
        episode_return=spread(returns),
        episode_cost=spread(costs),
        episode_length=spread(lengths),
    )


def assert_trees_close(actual, expected, **tolerance) -> None:
    """Same structure, and every leaf close."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), e in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, err_msg=jax.tree_util.keystr(path), **tolerance)
