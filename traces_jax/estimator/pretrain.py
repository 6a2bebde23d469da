"""Fitting a cost model to many recorded trajectories, block by block, on all devices.

Each device holds a shard of the block and draws its part of every batch from it. Gradients are averaged over devices.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from traces_jax.config import PretrainConfig
from traces_jax.core.keys import Stream, stream
from traces_jax.core.optimize import Trained
from traces_jax.estimator import refit as refit_lib
from traces_jax.feedback.trajectories import Trajectories

_SHARE = "share"
_CUT, _WHOLE = PartitionSpec(_SHARE), PartitionSpec()
# Learning rate of the last step, relative to the first.
_LAST_RATE = 0.1
# Decay of the weight average after the first steps: it covers about the last hundred.
_KEPT = 0.99


@flax.struct.dataclass
class State:
    """The state of pretraining.

    Attributes:
      fitted: weights and optimizer state after the last step.
      average: moving average of the weights. The accuracy of single steps fluctuates; that of the average is steady.
    """

    fitted: Trained
    average: Any

    @property
    def result(self) -> Trained:
        """The model to keep: the averaged weights."""
        return dataclasses.replace(self.fitted, params=self.average)


def begin(fitted: Trained) -> State:
    """The state before the first step."""
    return State(fitted=fitted, average=fitted.params)


@flax.struct.dataclass
class _Pace:
    """For each of the next steps [N]: its learning rate and the decay of the average."""

    rate: jax.Array
    kept: jax.Array


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled gradient steps.

    Attributes:
      settings: number of steps, batch size, learning rate.
      max_grad_norm: of a step.
      model: its loss and its judgement of trajectories.
      devices: over which the data are sharded.
    """

    settings: PretrainConfig
    max_grad_norm: float
    model: refit_lib.Model
    devices: Sequence[jax.Device]

    def place(self, rows: Trajectories, count: int) -> Trajectories:
        """Moves rows [N], padded with empty slots to at least `count`, to the devices."""
        size = -(-max(count, rows.count) // len(self.devices)) * len(self.devices)

        def fill(leaf: np.ndarray) -> np.ndarray:
            # Avoids a copy, which may be large, if the block is full; most are.
            missing = size - len(leaf)
            return np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) if missing else leaf

        return jax.device_put(jax.tree.map(fill, rows), NamedSharding(self._mesh, _CUT))

    def advance(self, state: State, rows: Trajectories, key: jax.Array, done: int) -> tuple[State, jax.Array]:
        """`settings.every` gradient steps on batches drawn from placed rows, and their mean loss [].

        key: of the whole pretraining; never consumed. done: number of earlier steps.
        """
        number = done + np.arange(self.settings.every, dtype=np.float32)
        rates = self.settings.lr * (1.0 - (1.0 - _LAST_RATE) * number / self.settings.steps)
        # A lower decay in the first steps, so that the initial weights soon drop out.
        kept = np.minimum(_KEPT, number / (number + 10.0))
        return self._compiled_steps(
            state, rows, stream(key, done, Stream.REFIT), _Pace(jnp.asarray(rates), jnp.asarray(kept))
        )

    def look(self, params: Any, rows: Trajectories) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities [N, P] of all labels of rows [N], and costs [N, T] of their steps."""
        found = self._compiled_look(params, self.place(rows, self.settings.batch))
        log_probability, cost = (np.asarray(leaf)[: rows.count] for leaf in jax.device_get(found))
        return log_probability, cost

    @functools.cached_property
    def _mesh(self) -> Mesh:
        return Mesh(np.asarray(self.devices), (_SHARE,))

    @functools.cached_property
    def _compiled_steps(self) -> Callable:
        own_batch = -(-self.settings.batch // len(self.devices))

        def one_share(state: State, rows: Trajectories, key: jax.Array, pace: _Pace):
            def step(state: State, now: tuple[jax.Array, _Pace]) -> tuple[State, jax.Array]:
                key, pace = now
                draw_key, noise_key = jax.random.split(key)
                batch = refit_lib.draw(rows, draw_key, own_batch)
                fitted, loss = refit_lib.step(
                    state.fitted,
                    batch,
                    noise_key,
                    lr=pace.rate,
                    weight_decay=self.settings.weight_decay,
                    max_grad_norm=self.max_grad_norm,
                    loss=self.model.loss,
                    axis=_SHARE,
                )
                average = optax.incremental_update(fitted.params, state.average, 1.0 - pace.kept)
                return State(fitted, average), loss

            own = jax.random.split(jax.random.fold_in(key, lax.axis_index(_SHARE)), self.settings.every)
            state, losses = lax.scan(step, state, (own, pace))
            return state, jnp.mean(losses)

        return self._shared(one_share, (_WHOLE, _CUT, _WHOLE, _WHOLE), (_WHOLE, _WHOLE))

    @functools.cached_property
    def _compiled_look(self) -> Callable:
        def one_share(params: Any, rows: Trajectories) -> tuple[jax.Array, jax.Array]:
            cost, log_probability = self.model.judge(params, rows)
            return log_probability, cost.T

        return self._shared(one_share, (_WHOLE, _CUT), (_CUT, _CUT))

    def _shared(self, function: Callable, in_specs: tuple, out_specs: tuple) -> Callable:
        # JAX cannot infer that all devices make the same step, because they average gradients.
        mapped = jax.shard_map(function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped)
