"""Lanes: seeds and swept settings side by side in one program, spread over the devices there are.

A lane never talks to another, so the lane axis is cut into one piece for each device and every piece runs at its own
pace. On a CPU the "devices" are its cores (see `host.runtime`): one lane's physics overlaps another's policy update.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from traces_jax import learner as learner_lib
from traces_jax.config import Config, Lane

_AXIS = "lane"


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled run.

    Attributes:
      learner: the pure training step.
      mesh: devices over which the lanes are cut.
      settings: the lanes' configs as one pytree, traced leaves [S].
      seeds: [S] the lanes' seeds.
    """

    learner: learner_lib.Learner
    mesh: Mesh
    settings: Config
    seeds: tuple[int, ...]
    chunk_length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "_chunk", jax.jit(self._build_chunk(), donate_argnums=1))

    @property
    def sharding(self) -> NamedSharding:
        """How every array with a leading lane axis lies on the devices."""
        return NamedSharding(self.mesh, PartitionSpec(_AXIS))

    def init(self) -> learner_lib.LearnerState:
        """Fresh lanes, every leaf [S, ...]."""
        init = jax.jit(jax.vmap(self.learner.init), out_shardings=self.sharding)
        return init(self._on_devices(self.settings), self._on_devices(self._keys()))

    def abstract(self) -> learner_lib.LearnerState:
        """Shapes, types and placement of the state, without making one."""
        shapes = jax.eval_shape(jax.vmap(self.learner.init), self.settings, self._keys())
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.sharding), shapes
        )

    def chunk(
        self, state: learner_lib.LearnerState, start: int
    ) -> tuple[learner_lib.LearnerState, dict[str, jax.Array]]:
        """`chunk_length` iterations from iteration `start`. state is consumed. Rows: [S, chunk_length]."""
        index = jax.device_put(np.int32(start), NamedSharding(self.mesh, PartitionSpec()))
        return self._chunk(self._on_devices(self.settings), state, index)  # type: ignore[attr-defined]

    def _keys(self) -> jax.Array:
        return jnp.stack([jax.random.key(seed) for seed in self.seeds])

    def _on_devices(self, tree):
        return jax.device_put(tree, self.sharding)

    def _build_chunk(self):
        def one_lane(settings: Config, state: learner_lib.LearnerState, start: jax.Array):
            def iteration(state, index):
                return self.learner.iteration(settings, state, index)

            # The index is not part of the state: batched over lanes, it could gate nothing.
            return lax.scan(iteration, state, start + jnp.arange(self.chunk_length))

        return self.over_lanes(one_lane, shared=1)

    def over_lanes(self, function: Callable, shared: int = 0) -> Callable:
        """Maps a function of (settings, state, *shared) for one lane over all lanes, each device its own."""
        lanes = PartitionSpec(_AXIS)
        return jax.shard_map(
            jax.vmap(function, in_axes=(0, 0, *[None] * shared)),
            mesh=self.mesh,
            in_specs=(lanes, lanes, *[PartitionSpec()] * shared),
            out_specs=lanes,
            # The varying-axes check would forbid host callbacks.
            check_vma=False,
        )


def device_count(lanes: int, available: int) -> int:
    """The most devices that share `lanes` equally."""
    return max(n for n in range(1, min(lanes, available) + 1) if lanes % n == 0)


def stack(lanes: Sequence[Lane]) -> Config:
    """The lanes' configs as one: static fields as they are, traced ones [S] float32."""
    return jax.tree.map(lambda *values: np.asarray(values, np.float32), *(lane.config for lane in lanes))


def make(config: Config, lanes: Sequence[Lane], learner: learner_lib.Learner, devices: Sequence[jax.Device]) -> Program:
    """The program of a run."""
    return Program(
        learner=learner,
        mesh=Mesh(np.asarray(devices), (_AXIS,)),
        settings=stack(lanes),
        seeds=tuple(lane.seed for lane in lanes),
        chunk_length=config.run.chunk,
    )
