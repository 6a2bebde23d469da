"""Reads the policy of one lane from a run folder, and nothing else of its checkpoint."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax import config as config_lib
from traces_jax.config import Lane
from traces_jax.core import kept as kept_lib
from traces_jax.core import learner as learner_lib
from traces_jax.core import parallel
from traces_jax.core.deployed import Deployed
from traces_jax.core.spread import Spread
from traces_jax.host.run import build, checkpoint, folder, restore


@dataclasses.dataclass(frozen=True)
class Saved:
    """A policy and where it comes from.

    Attributes:
      deployed: the policy.
      lane: its seed and settings.
      checkpoint: finished iterations of the checkpoint it was read from.
      iteration: finished iterations of the policy itself: fewer, if an earlier one is deployed.
      satisfied: whether it satisfied the constraint in training; None if the run does not keep such a policy.
    """

    deployed: Deployed
    lane: Lane
    checkpoint: int
    iteration: int
    satisfied: bool | None


def read(run: pathlib.Path, step: str, seed: int | None, say: Callable[[str], None]) -> Saved:
    """The policy of a run's first lane, or of the first one with a seed. step: see `restore.load`."""
    config = folder.load_config(run)
    lanes = config_lib.lanes(config)
    # Nothing is simulated, so the engine that loads fastest will do on any device.
    task = build.make_task(config, "native")
    learner = learner_lib.make(config, task, environments=Spread(), one_lane_at_a_time=True)
    keys = jax.eval_shape(lambda: jax.vmap(jax.random.key)(jnp.arange(len(lanes))))
    shapes = jax.eval_shape(jax.vmap(learner.init), parallel.stack(lanes), keys)

    def wanted(state: Any) -> tuple[kept_lib.Policy, Any]:
        """The policy in a state, and when it was kept."""
        if step == "deployed" and state.kept is not None:
            return state.kept.policy, (state.kept.iteration, state.kept.gap)
        return learner.policy(state), None

    with restore.opened(run, step) as saved:
        number, state = restore.pick(saved, _only(wanted, shapes), run, step, say)
        iterations = restore.lane_iterations(saved, step, number, len(lanes))
    lane = restore.chosen_lanes(run, lanes, iterations, seed, say)[0]
    policy, moment = jax.tree.map(lambda leaf: np.asarray(leaf)[lane], wanted(state))
    settings = jax.tree.map(np.float32, lanes[lane].config)
    empty = jax.eval_shape(learner.init, settings, jax.eval_shape(jax.random.key, 0))
    return Saved(
        deployed=Deployed(learner, settings, learner.with_policy(empty, policy)),
        lane=lanes[lane],
        checkpoint=int(iterations[lane]),
        iteration=int(iterations[lane] if moment is None else moment[0]),
        satisfied=None if moment is None else bool(moment[1] <= 0),
    )


def cpu() -> jax.Device:
    """The device for single actions: a transfer to an accelerator would take longer than the action."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out.
        return jax.local_devices()[0]


def _only(wanted: Callable[[Any], Any], shapes: Any) -> Any:
    """The tree to restore: shapes where `wanted` reads, nothing elsewhere."""
    read = {id(leaf) for leaf in jax.tree.leaves(wanted(shapes))}
    place = jax.sharding.SingleDeviceSharding(cpu())
    return jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place) if id(leaf) in read else checkpoint.LEFT_OUT
        ),
        shapes,
    )
