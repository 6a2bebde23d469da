"""What several test files share."""

import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import remains
from traces_jax import config as config_lib
from traces_jax.core.learner import LearnerState
from traces_jax.core.rollout import Truth
from traces_jax.estimator import network
from traces_jax.host.run import build, folder, restore

ROOT = pathlib.Path(__file__).parent.parent


def make_config(**changes: Any) -> config_lib.Config:
    """Defaults with `changes` applied, validated.

    Unless they say otherwise: with the true cost, and with exploring environments only.
    """
    constraint = {"policy": "noisy", **changes.pop("constraint", {})}
    given = {"method": {"source": "oracle"}, "constraint": constraint, **changes}
    return config_lib.from_dict(config_lib.make(**given).to_dict())


_CANDIDATES = {
    int: [1, 4],
    float: [0.0, 0.5, 0.25, -3.0],
    bool: [True, False],
    str: [
        "ProbeBudget",
        "native",
        "tanh",
        "free",
        "ppo.clip=0.1",
        "oracle",
        "released",
        "mean",
        "summary",
        "by_cost",
        "random",
        "jensen",
        "people",
        "paper",
        "never",
        "adam",
        "plain",
        "cup",
        "as_released",
        "prefixes",
        "warp",
        "wandb",
    ],
    tuple[int, ...]: [(7,)],
    tuple[float, ...]: [(0.7, 1)],
}


def other_value(field):
    """A valid value other than the default."""
    return next(v for v in _CANDIDATES[field.type] if v != field.default and field.metadata["check"](v))


def train(config: config_lib.Config) -> tuple[build.Built, LearnerState, dict[str, np.ndarray]]:
    """The whole run of a config. Returns what was built, the last state [S, ...] and all rows [S, iterations]."""
    built = build.build(config)
    state = built.program.init()
    chunks = []
    for start in range(0, config.iterations, config.run.chunk):
        state, rows = built.program.chunk(state, start, config.run.chunk)
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


def first_carry(estimator: network.Estimator, batch_shape: tuple[int, ...]) -> jax.Array:
    """What an estimator remembers before the first step, [L, *batch_shape, H]."""
    return jnp.zeros((len(estimator.layers), *batch_shape, estimator.layers[0].hidden_kernel.shape[0]))


def assert_trees_close(actual, expected, **tolerance) -> None:
    """Same structure, and every leaf close."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, a), e in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, err_msg=jax.tree_util.keystr(path), **tolerance)


def command(folder: pathlib.Path, *more: str) -> list[str]:
    """The command line of a small run on a probe."""
    return [
        sys.executable, "-m", "traces_jax.train", "--config", str(ROOT / "experiments/hopper.py"),
        "--config.task=ProbeBudget", "--config.method.source=oracle", "--config.steps=8000",
        "--config.environment.steps=20", "--config.run.tensorboard=false",
        "--config.environment.count=2", "--config.ppo.minibatch=20", "--config.run.checkpoint_every=5",
        "--config.run.evaluation_episodes=0", f"--run_dir={folder}", *more,
    ]  # fmt: skip


def make_folder(config: config_lib.Config, path: pathlib.Path) -> None:
    """A run folder in which nothing has happened yet."""
    with folder.locked(path):
        folder.prepare(config, path, print)


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def rows_written(folder: pathlib.Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def last_state(folder: pathlib.Path):
    """The newest state of a run, keys as numbers."""
    loaded = restore.load(folder, "latest", None, print)
    return jax.device_get(loaded.state.replace(key=jax.random.key_data(loaded.state.key)))


def assert_same_run(a: pathlib.Path, b: pathlib.Path) -> None:
    """Every leaf bit for bit, and the same rows but for times."""
    left, right = last_state(a), last_state(b)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))
    rows = [remains.rows(own / "metrics.jsonl") for own in (a, b)]
    assert rows[0] == rows[1]
    config = folder.load_config(a)
    assert len(rows[0]) == config.iterations * len(config_lib.lanes(config))


def with_agent(state, agent):
    """The state of lanes with other networks."""
    return state.replace(solver=state.solver.replace(agent=agent))


class NoCost:
    """Mixed into a task: its steps have no cost."""

    has_cost = False

    def step(self, state, action):
        after = super().step(state, action)  # type: ignore[misc]
        return after.replace(info={**after.info, "cost": jnp.full((), jnp.nan)})
