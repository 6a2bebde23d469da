"""Writes a policy as files for other programs, and a card that says what it is.

policy.onnx   for ONNX runtimes
policy.jax    for JAX without this package: jax.export.deserialize(bytes).call(...)
card.json     where the policy comes from, and the sizes of its inputs and outputs
card.md       the same to read
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

import traces_jax
from traces_jax.core import rollout
from traces_jax.core.deployed import Deployed, Remembered
from traces_jax.host import errors, files
from traces_jax.host.deploy import card
from traces_jax.host.deploy.saved import Saved

FORMATS = ("onnx", "jax")
# Largest difference between a file and the policy.
TOLERANCE = 1e-5
# Where the artefact of `jax.export` runs.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_CHECKED = 1000


@dataclasses.dataclass(frozen=True)
class Flat:
    """A policy whose memory is one array, as files know it.

    memory [B, M] is zero at the start of an episode. It is left out, with next_memory, if M is 0. cost [B], the true
    cost of the step before, is only there if the policy has a budget of that.
    """

    deployed: Deployed

    @property
    def inputs(self) -> dict[str, list[str | int]]:
        """Names and shapes of the inputs."""
        sizes: dict[str, list[str | int]] = {"observation": ["batch", self.deployed.learner.task.observation_size]}
        if self.memory_size:
            sizes["memory"] = ["batch", self.memory_size]
        if self.deployed.reads_cost:
            sizes["cost"] = ["batch"]
        return sizes

    @property
    def outputs(self) -> dict[str, list[str | int]]:
        """Names and shapes of the outputs."""
        sizes: dict[str, list[str | int]] = {"action": ["batch", self.deployed.learner.task.action_size]}
        return sizes | ({"next_memory": ["batch", self.memory_size]} if self.memory_size else {})

    @property
    def memory_size(self) -> int:
        """Size M of the memory. If an episode does not begin with zeros, the last number says whether it has begun."""
        return sum(leaf.size for leaf in self._first) + self._is_marked

    def call(self, *inputs: jax.Array) -> tuple[jax.Array, ...]:
        """The outputs [B, ...] for the inputs [B, ...], in their order."""
        return jax.vmap(self._one)(*inputs)

    def _one(self, observation: jax.Array, memory: jax.Array | None = None, cost: jax.Array | None = None):
        begun = memory[-1:] > 0 if self._is_marked and memory is not None else jnp.ones((1,), bool)
        remembered = Remembered(memory=self._unflattened(memory, begun), started=begun)
        paid = jnp.zeros((1,)) if cost is None else cost[None]
        action, after = self.deployed.step(remembered, observation[None], paid)
        if memory is None:
            return (action[0],)
        mark = [jnp.ones((1,))] if self._is_marked else []
        return action[0], jnp.concatenate([*(leaf.reshape(-1) for leaf in jax.tree.leaves(after.memory)), *mark])

    def _unflattened(self, memory: jax.Array | None, begun: jax.Array) -> rollout.Memory:
        first = self.deployed.begin(1).memory
        if memory is None:
            return first
        shapes, cuts = [leaf.shape for leaf in self._first], np.cumsum([leaf.size for leaf in self._first])
        leaves = [part.reshape(shape) for part, shape in zip(jnp.split(memory, cuts), shapes, strict=False)]
        return rollout.where(begun, jax.tree.unflatten(jax.tree.structure(first), leaves), first)

    @functools.cached_property
    def _first(self) -> list[np.ndarray]:
        """The memory at the start of an episode: numbers also while `call` is traced."""
        with jax.ensure_compile_time_eval():
            return [np.asarray(leaf) for leaf in jax.tree.leaves(self.deployed.begin(1).memory)]

    @property
    def _is_marked(self) -> bool:
        return any(leaf.any() for leaf in self._first) or self.deployed.reads_cost


def export(
    saved: Saved, run: pathlib.Path, out: pathlib.Path, formats: Sequence[str], say: Callable[[str], None]
) -> None:
    """Writes the folder, atomically. Each file is compared with the policy before it is kept."""
    flat = Flat(saved.deployed)
    about = card.facts(saved, run, traces_jax.__version__)
    about |= {"inputs": flat.inputs, "outputs": flat.outputs}
    samples = _samples(flat)
    expected = _played(flat, jax.jit(flat.call), samples)
    with files.folder_beside(out) as folder:
        for name in formats:
            path = folder / f"policy.{name}"
            play = _write_onnx(flat, about, path) if name == "onnx" else _write_jax(flat, path)
            found = _played(flat, play, samples)
            difference = float(np.max(np.abs(found - expected)))
            if not difference <= TOLERANCE:
                raise errors.UserError(
                    f"{path.name} differs from the policy by {difference:.2g}, more than {TOLERANCE:g}; nothing is "
                    "written."
                )
            about.setdefault("largest_difference", {})[path.name] = difference
            say(f"{path.name}: differs from the policy by at most {difference:.1e} on {_CHECKED} observations")
        files.write_text(folder / "card.json", json.dumps(about, indent=2) + "\n")
        files.write_text(folder / "card.md", card.page(about))


def _write_jax(flat: Flat, path: pathlib.Path) -> Callable[..., Any]:
    batch = jax.export.symbolic_shape("batch")[0]
    shapes = [
        jax.ShapeDtypeStruct([batch if size == "batch" else size for size in shape], jnp.float32)
        for shape in flat.inputs.values()
    ]
    # Accelerators would otherwise round inputs of products to 10 bits.
    with jax.default_matmul_precision("highest"):
        exported = jax.export.export(jax.jit(flat.call), platforms=_PLATFORMS)(*shapes)
    data = bytes(exported.serialize())
    files.write_bytes(path, data)
    return jax.export.deserialize(bytearray(data)).call


def _write_onnx(flat: Flat, about: dict[str, Any], path: pathlib.Path) -> Callable[..., Any]:
    try:
        import onnx.reference

        from traces_jax.host.deploy import graph
    except ImportError:
        raise errors.UserError(
            "ONNX needs the package onnx: pip install 'traces_jax[export]'; --formats=jax does without."
        ) from None
    notes = {name: str(about[name]) for name in ("task", "method", "seed", "iteration", "version")}
    model = graph.build(flat.deployed, flat.memory_size, notes)
    files.write_bytes(path, model.SerializeToString())
    # The specification's own interpreter: slow, but needs no runtime.
    reference = onnx.reference.ReferenceEvaluator(model)
    names = list(flat.inputs)
    return lambda *inputs: reference.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))


def _samples(flat: Flat) -> tuple[np.ndarray, np.ndarray]:
    """Episodes to compare on: observations [T, B, O] around those of training, and costs [T, B]."""
    random = np.random.default_rng(0)
    statistics = flat.deployed.state.normalizers.observation
    deviation = np.sqrt(np.maximum(statistics.squares / max(float(statistics.count) - 1.0, 1.0), 1e-4))
    shape = (10, _CHECKED // 10)
    observation = statistics.mean + 2.0 * deviation * random.standard_normal((*shape, len(statistics.mean)))
    return np.asarray(observation, np.float32), random.integers(0, 2, shape).astype(np.float32)


def _played(flat: Flat, play: Callable[..., Any], samples: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The outputs [T, B, A + M] of a policy that plays all episodes."""
    observations, costs = samples
    memory = np.zeros((observations.shape[1], flat.memory_size), np.float32)
    found = []
    for observation, cost in zip(observations, costs, strict=True):
        given = {"observation": observation, "memory": memory, "cost": cost}
        action, *after = play(*(given[name] for name in flat.inputs))
        memory = np.asarray(after[0]) if after else memory
        found.append(np.concatenate([np.asarray(action), memory], axis=-1))
    return np.asarray(found)
