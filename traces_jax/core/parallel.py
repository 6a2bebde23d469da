"""Runs all lanes (one seed with one setting each) in one program, sharded over the available devices.

Devices form a grid. Its first axis shards the lanes: they exchange no data, so the devices run independently. Its
second axis shards the environments of each lane: devices collect separately and gather once in an iteration. On a CPU
the "devices" are its cores (see `host.runtime`), and no core waits for another between two environment steps.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from traces_jax.config import Config, Lane
from traces_jax.core import halves
from traces_jax.core.learner import Learner, LearnerState
from traces_jax.core.spread import Spread
from traces_jax.sources import Answers, Prior

_LANE, _ENVIRONMENT = "lane", "environment"
_BY_LANE = PartitionSpec(_LANE)
# Which axes of a state's leaves [S, ...] are sharded. Only environments [S, B, ...] are sharded along two axes.
_STATE: Any = LearnerState(
    **{field.name: _BY_LANE for field in dataclasses.fields(LearnerState)}  # type: ignore[arg-type]
    | {"runner": PartitionSpec(_LANE, _ENVIRONMENT)}
)


@dataclasses.dataclass(frozen=True)
class Grid:
    """Devices, indexed by shard of lanes and shard of environments."""

    mesh: Mesh

    @property
    def environments(self) -> Spread:
        """How a learner on this grid distributes its environments."""
        shares = self.mesh.shape[_ENVIRONMENT]
        return Spread(_ENVIRONMENT, shares) if shares > 1 else Spread()


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled run.

    Attributes:
      learner: the pure training step.
      grid: the devices.
      settings: the lanes' configs as one pytree, traced leaves [S].
      seeds: [S] the lanes' seeds.
    """

    learner: Learner
    grid: Grid
    settings: Config
    seeds: tuple[int, ...]

    def init(self, prior: Prior | None = None) -> LearnerState:
        """New lanes, every leaf [S, ...]. prior: the estimator that all lanes start from."""
        init = jax.jit(self._new_lanes, out_shardings=self._shardings(_STATE))
        return init(self._on_devices(self.settings), self._on_devices(self._seeds()), self._everywhere(prior))

    def abstract(self) -> LearnerState:
        """Shapes, dtypes and shardings of the state, without computing one."""
        shapes = jax.eval_shape(self._new_lanes, self.settings, self._seeds())
        return jax.tree.map(
            lambda sharding, tree: jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
            ),
            self._shardings(_STATE),
            shapes,
        )

    def place(self, state: LearnerState) -> LearnerState:
        """Moves a state of these lanes to this program's devices."""
        return jax.tree.map(lambda sharding, tree: jax.device_put(tree, sharding), self._shardings(_STATE), state)

    def chunk(self, state: LearnerState, start: int, length: int) -> tuple[LearnerState, dict[str, jax.Array]]:
        """`length` iterations from iteration `start`. state is consumed. Rows: [S, length].

        Compiles once for each length.
        """
        index = self._everywhere(np.int32(start))
        return self._compiled_chunk(self._on_devices(self.settings), state, index, length)

    def traced(self, length: int) -> jax.stages.Traced:
        """The program of a chunk, before anything is allocated: to lower it, or to ask XLA for its memory."""
        index = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(self.grid.mesh, PartitionSpec()))
        return self._compiled_chunk.trace(self._on_devices(self.settings), self.abstract(), index, length)

    def asks(self, index: int) -> bool:
        """Whether labels are due after an iteration; the same for all lanes."""
        return bool(self.learner.source.asks(self.settings, index))

    def ask(self, state: LearnerState, index: int) -> tuple[LearnerState, halves.Opened]:
        """The first half of an iteration whose labels come from outside. state is not consumed."""
        return self._compiled_ask(self._on_devices(self.settings), state, self._everywhere(np.int32(index)))

    def answer(self, opened: halves.Opened, index: int) -> Answers:
        """Labels [S, K, P] from the source's own labeler, on the devices."""
        seeds = self._on_devices(self._seeds())
        return self._compiled_answer(self._on_devices(self.settings), seeds, opened, index)

    def absorb(
        self, state: LearnerState, opened: halves.Opened, answers: Answers, index: int
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """The second half. state, which comes from `ask`, is consumed. answers: [S, K, P]. Rows: [S, 1]."""
        return self._compiled_absorb(
            self._on_devices(self.settings),
            state,
            (opened, self._on_devices(answers)),
            self._everywhere(np.int32(index)),
            self.asks(index),
        )

    def map_lanes(self, function: Callable, *, out_specs=_BY_LANE, own: int = 0, shared: int = 0) -> Callable:
        """Maps a one-lane function of (settings, state, *own, *shared) over all lanes; each device computes its lanes.

        own: how many arguments have a leading axis of lanes; shared: how many are the same for all.
        """
        return jax.shard_map(
            jax.vmap(function, in_axes=(0, 0, *[0] * own, *[None] * shared)),
            mesh=self.grid.mesh,
            in_specs=(_BY_LANE, _STATE, *[_BY_LANE] * own, *[PartitionSpec()] * shared),
            out_specs=out_specs,
            # JAX cannot infer that devices which share a lane compute the same update from the gathered rollout.
            check_vma=False,
        )

    @functools.cached_property
    def _compiled_chunk(self) -> jax.stages.Wrapped:
        specs = (_STATE, _BY_LANE)

        def chunk(settings: Config, state: LearnerState, start: jax.Array, length: int):
            def one_lane(settings: Config, state: LearnerState, start: jax.Array):
                def iteration(state, index):
                    return self.learner.iteration(settings, state, index)

                # The index is not part of the state: batched over lanes, it would turn `lax.cond` into a select.
                return lax.scan(iteration, state, start + jnp.arange(length))

            return self.map_lanes(one_lane, out_specs=specs, shared=1)(settings, state, start)

        # Explicit output shardings equal those of the input, so that the next call does not compile again.
        return jax.jit(chunk, static_argnums=3, donate_argnums=1, out_shardings=self._shardings(specs))

    @functools.cached_property
    def _compiled_ask(self) -> Callable:
        specs = (_STATE, _BY_LANE)

        def ask(settings: Config, state: LearnerState, index: jax.Array):
            one_lane = functools.partial(halves.ask, self.learner)
            return self.map_lanes(one_lane, out_specs=specs, shared=1)(settings, state, index)

        return jax.jit(ask, out_shardings=self._shardings(specs))

    @functools.cached_property
    def _compiled_answer(self) -> Callable:
        def one_lane(settings: Config, seed: jax.Array, opened: halves.Opened, index: jax.Array) -> Answers:
            key = jax.random.fold_in(jax.random.key(seed), index)
            return self.learner.source.answer(settings, opened.query, key)

        return jax.jit(jax.vmap(one_lane, in_axes=(0, 0, 0, None)), out_shardings=self._shardings(_BY_LANE))

    @functools.cached_property
    def _compiled_absorb(self) -> Callable:
        specs = (_STATE, _BY_LANE)

        def absorb(settings: Config, state: LearnerState, said: tuple, index: jax.Array, due: bool):
            def one_lane(settings: Config, state: LearnerState, said: tuple, index: jax.Array):
                opened, answers = said
                state, row = halves.absorb(self.learner, settings, state, opened, answers, index, due=due)
                return state, jax.tree.map(lambda value: value[None], row)

            return self.map_lanes(one_lane, out_specs=specs, own=1, shared=1)(settings, state, said, index)

        return jax.jit(absorb, static_argnums=4, donate_argnums=1, out_shardings=self._shardings(specs))

    def _seeds(self) -> np.ndarray:
        return np.asarray(self.seeds, np.uint32)

    def _new_lanes(self, settings: Config, seeds: jax.Array, prior: Prior | None = None) -> LearnerState:
        keys = jax.vmap(jax.random.key)(seeds)
        return jax.vmap(self.learner.init, in_axes=(0, 0, None))(settings, keys, prior)

    def _shardings(self, specs):
        return jax.tree.map(lambda spec: NamedSharding(self.grid.mesh, spec), specs)

    def _everywhere(self, tree):
        return jax.device_put(tree, NamedSharding(self.grid.mesh, PartitionSpec()))

    def _on_devices(self, tree):
        return jax.device_put(tree, NamedSharding(self.grid.mesh, _BY_LANE))


def grid(lanes: int, environments: int, devices: Sequence[jax.Device]) -> Grid:
    """The grid with the most devices that divide the lanes equally, then the most that divide a lane's environments."""
    pieces = _largest_divisor(lanes, len(devices))
    shares = _largest_divisor(environments, len(devices) // pieces)
    return Grid(Mesh(np.asarray(devices[: pieces * shares]).reshape(pieces, shares), (_LANE, _ENVIRONMENT)))


def stack(lanes: Sequence[Lane]) -> Config:
    """The lanes' configs as one: static fields unchanged, traced fields stacked to [S] float32."""
    return jax.tree.map(lambda *values: np.asarray(values, np.float32), *(lane.config for lane in lanes))


def make(lanes: Sequence[Lane], learner: Learner, grid: Grid) -> Program:
    """The program for a run."""
    return Program(
        learner=learner,
        grid=grid,
        settings=stack(lanes),
        seeds=tuple(lane.seed for lane in lanes),
    )


def _largest_divisor(number: int, limit: int) -> int:
    return max(n for n in range(1, min(number, limit) + 1) if number % n == 0)
