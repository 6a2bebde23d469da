"""Reads estimators saved by PyTorch (`torch.save` of a state dict), without PyTorch and without trusting the file.

Such a file is a zip archive: `data.pkl`, a pickle that describes the tensors, and the raw data of each storage. Sizes
are checked against each other and against bounds before data is read.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.estimator import gru, network
from traces_jax.host.data import archives, torch_pickle
from traces_jax.sources.ct import CostThreshold

_BYTE_ORDERS = {b"little": "<", b"big": ">"}
# Far more than any estimator has. They bound the memory that reading a file can take.
_DESCRIPTION_BYTES = 1 << 20
_MOST_NUMBERS = 1 << 25
_STORAGE_BYTES = 8 * _MOST_NUMBERS


class TorchFileError(ValueError):
    """What is wrong with the file, in one sentence."""


def state_dict(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a state dict by name. They may share memory and are read-only."""
    try:
        with archives.opened(path) as archive:
            return _read(archive)
    except (archives.ArchiveError, torch_pickle.PickleError) as error:
        raise TorchFileError(f"{path} {error}; it must be a state dict saved by PyTorch 1.6 or later.") from None


@dataclasses.dataclass(frozen=True)
class Imported:
    """A cost model from a file.

    Attributes:
      params: its parameters.
      features: numbers it reads of a step.
    """

    params: Any
    features: int


def load(path: pathlib.Path) -> Imported:
    """The cost model in a file of the authors: a TraCeS estimator or that of the cost-threshold baseline."""
    tensors = state_dict(path)
    if "log_budget" in tensors:
        return _cost_threshold(tensors, source=str(path))
    found = from_state_dict(tensors, source=str(path))
    return Imported(found, features=found.layers[0].input_kernel.shape[0])


def _cost_threshold(tensors: Mapping[str, np.ndarray], *, source: str) -> Imported:
    """The cost-threshold baseline with these tensors, of any widths."""
    rest = _Rest(source, dict(tensors), "cost-threshold model")
    inputs = features = rest.find("mlp_log_cost.0.weight", rank=2).shape[1]
    layers: dict[str, dict[str, jax.Array]] = {}
    depth = 0
    # A linear layer, its activation, a layer norm, and dropout: four indices for each.
    while (name := f"mlp_log_cost.{4 * depth}") + ".weight" in rest.tensors:
        width, norm = rest.find(f"{name}.weight", rank=2).shape[0], f"mlp_log_cost.{4 * depth + 2}"
        layers[f"Dense_{depth}"] = vars(rest.take_dense(name, inputs, width))
        layers[f"LayerNorm_{depth}"] = {
            "scale": rest.take(f"{norm}.weight", width),
            "bias": rest.take(f"{norm}.bias", width),
        }
        inputs, depth = width, depth + 1
    layers[f"Dense_{depth}"] = vars(rest.take_dense("mlp_log_cost_output", inputs, 1))
    params = CostThreshold(network={"params": layers}, log_threshold=rest.take("log_budget", 1)[0])
    rest.check_empty()
    return Imported(params, features)


def estimator(path: pathlib.Path) -> network.Estimator:
    """The TraCeS estimator in a file."""
    return from_state_dict(state_dict(path), source=str(path))


def from_state_dict(tensors: Mapping[str, np.ndarray], *, source: str) -> network.Estimator:
    """The estimator with these tensors: any number of GRU and decoder layers, of any widths.

    source: where they come from, for error messages.
    """
    rest = _Rest(source, dict(tensors), "TraCeS estimator")
    inputs = rest.find("gru.weight_ih_l0", rank=2).shape[1]
    hidden = rest.find("gru.weight_hh_l0", rank=2).shape[1]
    layers: list[gru.GruLayer] = []
    while f"gru.weight_ih_l{len(layers)}" in rest.tensors:
        layers.append(rest.take_gru(f"l{len(layers)}", inputs, hidden))
        inputs = hidden
    decoder: list[network.Dense] = []
    inputs, name = 2 * hidden, "decoder.0"
    while f"{name}.weight" in rest.tensors or not decoder:
        outputs = rest.find(f"{name}.weight", rank=2).shape[0]
        decoder.append(rest.take_dense(name, inputs, outputs))
        # Odd indices are activations, which have no parameters.
        inputs, name = outputs, f"decoder.{2 * len(decoder)}"
    result = network.Estimator(
        layers=tuple(layers),
        decoder=tuple(decoder),
        mean_head=rest.take_dense("decoder_output", inputs, 1),
        log_std_head=rest.take_dense("decoder_output_logstd", inputs, 1),
    )
    rest.check_empty()
    return result


@dataclasses.dataclass(frozen=True)
class _Rest:
    """The tensors of a state dict that are not used yet. what: the network they should be."""

    source: str
    tensors: dict[str, np.ndarray]
    what: str

    def check_empty(self) -> None:
        """Refuses tensors that the network has no place for."""
        if self.tensors:
            unknown = archives.short(next(iter(self.tensors)))
            raise TorchFileError(f"{self.source} holds no {self.what}: it has no place for {unknown}.")

    def find(self, name: str, *, rank: int) -> np.ndarray:
        if name not in self.tensors:
            raise TorchFileError(f"{self.source} holds no {self.what}: {name!r} is missing.")
        tensor = self.tensors[name]
        if tensor.ndim != rank:
            raise TorchFileError(f"{self.source}: {name} has {tensor.ndim} dimensions; it must have {rank}.")
        return tensor

    def take(self, name: str, *shape: int) -> jax.Array:
        """A float32 tensor; matrices are transposed from [outputs, inputs] to [inputs, outputs]."""
        tensor = self.find(name, rank=len(shape))
        if tensor.shape != shape:
            raise TorchFileError(f"{self.source}: {name} has shape {list(tensor.shape)}; it must be {list(shape)}.")
        with np.errstate(over="ignore"):
            numbers = tensor.astype(np.float32)
        if not np.all(np.isfinite(numbers)):
            raise TorchFileError(f"{self.source}: {name} holds numbers that are not finite in float32.")
        del self.tensors[name]
        return jnp.asarray(numbers.T)

    def take_gru(self, suffix: str, inputs: int, hidden: int) -> gru.GruLayer:
        return gru.GruLayer(
            input_kernel=self.take(f"gru.weight_ih_{suffix}", 3 * hidden, inputs),
            hidden_kernel=self.take(f"gru.weight_hh_{suffix}", 3 * hidden, hidden),
            input_bias=self.take(f"gru.bias_ih_{suffix}", 3 * hidden),
            hidden_bias=self.take(f"gru.bias_hh_{suffix}", 3 * hidden),
        )

    def take_dense(self, name: str, inputs: int, outputs: int) -> network.Dense:
        return network.Dense(
            kernel=self.take(f"{name}.weight", outputs, inputs), bias=self.take(f"{name}.bias", outputs)
        )


def _read(archive: archives.Archive) -> dict[str, np.ndarray]:
    pickles = [name for name in archive.members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise archives.ArchiveError(f"is not a file of PyTorch: it must hold one data.pkl, not {len(pickles)}")
    folder = pickles[0].removesuffix("data.pkl")
    archive.check_total(pickles, _DESCRIPTION_BYTES)
    contents = torch_pickle.load(bytes(archive.read(pickles[0])))
    if not isinstance(contents, dict):
        raise archives.ArchiveError(f"is not a state dict: it holds an object of type {type(contents).__name__!r}")
    for name, tensor in contents.items():
        if not isinstance(tensor, torch_pickle.Tensor):
            raise archives.ArchiveError(f"is not a state dict: entry {archives.short(name)} is not a tensor")
    # Tensors that share a storage are counted separately, because each becomes its own array.
    total = sum(math.prod(tensor.shape) for tensor in contents.values())
    if total > _MOST_NUMBERS:
        raise archives.ArchiveError(f"describes {total} numbers; at most {_MOST_NUMBERS} are read")
    storages = _storages(archive, folder, {tensor.storage for tensor in contents.values()})
    return {name: _view(name, storages[tensor.storage], tensor) for name, tensor in contents.items()}


def _storages(
    archive: archives.Archive, folder: str, wanted: set[torch_pickle.Storage]
) -> dict[torch_pickle.Storage, np.ndarray]:
    """The data of all storages, each read once, in native byte order."""
    places = {storage: f"{folder}data/{storage.key}" for storage in wanted}
    for storage, place in places.items():
        if place not in archive.members:
            raise archives.ArchiveError(f"is damaged: it has no storage {archives.short(storage.key)}")
        found, itemsize = archive.members[place].file_size, np.dtype(storage.dtype).itemsize
        if found != storage.size * itemsize:
            right = f"{storage.size} numbers of {itemsize} bytes"
            raise archives.ArchiveError(
                f"is damaged: storage {archives.short(storage.key)} has {found} bytes for {right}"
            )
    archive.check_total(places.values(), _STORAGE_BYTES)
    order = _byte_order(archive, f"{folder}byteorder")
    return {
        storage: np.frombuffer(archive.read(place), order + storage.dtype).astype(storage.dtype, copy=False)
        for storage, place in places.items()
    }


def _byte_order(archive: archives.Archive, name: str) -> str:
    """NumPy's character for the byte order. Files of older versions do not declare it and are little-endian."""
    if name not in archive.members:
        return "<"
    archive.check_total([name], max(map(len, _BYTE_ORDERS)))
    said = bytes(archive.read(name))
    if said not in _BYTE_ORDERS:
        raise archives.ArchiveError(f"is damaged: its byte order is {said!r}, neither little nor big")
    return _BYTE_ORDERS[said]


def _view(name: str, storage: np.ndarray, tensor: torch_pickle.Tensor) -> np.ndarray:
    """The tensor's entries, as a view: several tensors may share one storage."""
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    # A tensor may overlap with others but, as a weight, not with itself.
    entries = math.prod(tensor.shape)
    if entries > storage.size or (entries and last >= storage.size):
        place = f"{archives.short(name)} of shape {list(tensor.shape)}"
        raise archives.ArchiveError(f"is damaged: {place} lies outside its storage")
    steps = tuple(stride * storage.itemsize for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, steps, writeable=False)
