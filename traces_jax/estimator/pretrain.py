"""Fitting the estimator to many recorded trajectories, block by block, on all devices there are.

Each device holds its share of a block and draws its share of every batch from it; together they make one gradient step.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from traces_jax.config import PretrainConfig
from traces_jax.estimator import network
from traces_jax.estimator import refit as refit_lib
from traces_jax.feedback.trajectories import Trajectories
from traces_jax.keys import Stream, stream
from traces_jax.optimize import Trained

_SHARE = "share"
_CUT, _WHOLE = PartitionSpec(_SHARE), PartitionSpec()
# Of the first rate, that of the last step.
_LAST_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled gradient steps.

    Attributes:
      settings: how many, how large, how fast.
      max_grad_norm: of a step.
      prepare: from raw inputs to what the network reads.
      ends: [P] lengths of the prefixes.
      clamp: of the credits.
      devices: that share the work.
    """

    settings: PretrainConfig
    max_grad_norm: float
    prepare: refit_lib.Prepare
    ends: np.ndarray
    clamp: float
    devices: Sequence[jax.Device]

    def place(self, rows: Trajectories, count: int) -> Trajectories:
        """Lays rows [N], filled up with empty places to at least `count`, on the devices."""
        size = -(-max(count, rows.count) // len(self.devices)) * len(self.devices)

        def fill(leaf: np.ndarray) -> np.ndarray:
            # Most blocks are full, and a copy of one may be large.
            missing = size - len(leaf)
            return np.concatenate([leaf, np.zeros((missing, *leaf.shape[1:]), leaf.dtype)]) if missing else leaf

        return jax.device_put(jax.tree.map(fill, rows), NamedSharding(self._mesh, _CUT))

    def advance(self, fitted: Trained, rows: Trajectories, key: jax.Array, done: int) -> tuple[Trained, jax.Array]:
        """`settings.every` gradient steps on batches drawn from placed rows, and their mean loss [].

        key: of the whole pretraining; never consumed. done: steps made before.
        """
        progress = (done + np.arange(self.settings.every)) / self.settings.steps
        rates = self.settings.lr * (1.0 - (1.0 - _LAST_RATE) * progress)
        return self._compiled_steps(fitted, rows, stream(key, done, Stream.REFIT), rates.astype(np.float32))

    def look(self, estimator: network.Estimator, rows: Trajectories) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities [N, P] of all prefixes of rows [N], and mean credits [N, T] of their steps."""
        found = self._compiled_look(estimator, self.place(rows, self.settings.batch))
        log_probability, credit = (np.asarray(leaf)[: rows.count] for leaf in jax.device_get(found))
        return log_probability, credit

    @functools.cached_property
    def _mesh(self) -> Mesh:
        return Mesh(np.asarray(self.devices), (_SHARE,))

    @functools.cached_property
    def _compiled_steps(self) -> Callable:
        own_batch = -(-self.settings.batch // len(self.devices))

        def one_share(fitted: Trained, rows: Trajectories, key: jax.Array, rates: jax.Array):
            def step(fitted: Trained, now: tuple[jax.Array, jax.Array]) -> tuple[Trained, jax.Array]:
                key, rate = now
                draw_key, noise_key = jax.random.split(key)
                batch = refit_lib.draw(rows, draw_key, own_batch)
                return refit_lib.step(
                    fitted,
                    batch,
                    noise_key,
                    lr=rate,
                    weight_decay=self.settings.weight_decay,
                    max_grad_norm=self.max_grad_norm,
                    prepare=self.prepare,
                    ends=self.ends,
                    clamp=self.clamp,
                    axis=_SHARE,
                )

            own = jax.random.split(jax.random.fold_in(key, lax.axis_index(_SHARE)), rates.shape[0])
            fitted, losses = lax.scan(step, fitted, (own, rates))
            return fitted, jnp.mean(losses)

        return self._shared(one_share, (_WHOLE, _CUT, _WHOLE, _WHOLE), (_WHOLE, _WHOLE))

    @functools.cached_property
    def _compiled_look(self) -> Callable:
        def one_share(estimator: network.Estimator, rows: Trajectories) -> tuple[jax.Array, jax.Array]:
            mean = refit_lib.mean_credit(estimator, rows, prepare=self.prepare, clamp=self.clamp)
            return refit_lib.at_prefixes(mean, rows.length, self.ends), mean.T

        return self._shared(one_share, (_WHOLE, _CUT), (_CUT, _CUT))

    def _shared(self, function: Callable, in_specs: tuple, out_specs: tuple) -> Callable:
        # JAX cannot see that the devices, which exchange gradients, all make the same step.
        mapped = jax.shard_map(function, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(mapped)
