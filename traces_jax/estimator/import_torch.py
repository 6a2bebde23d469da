"""Reads estimators that PyTorch saved (`torch.save` of a state dict), without PyTorch and without trusting the file.

Such a file is a zip archive: `data.pkl`, a pickle that describes the tensors, and the raw numbers of each storage. A
pickle may name any function of any library and have it called. Here it may name the few that describe tensors, and
what stands behind those names only takes notes; every other name is refused where it is read.
"""

import collections
import dataclasses
import io
import math
import pathlib
import pickle
import pickletools
import zipfile
import zlib
from collections.abc import Mapping
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from traces_jax.estimator import gru, network

_DTYPES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "b1",
}
_BYTE_ORDERS = {b"little": "<", b"big": ">"}
# What Python's readers of archives and pickles raise for broken content; no list of theirs is complete.
_BROKEN = (
    pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, TypeError, AttributeError,
    LookupError, RuntimeError, MemoryError, OverflowError,
)  # fmt: skip


class TorchFileError(ValueError):
    """One sentence that says what is wrong with the file."""


def state_dict(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All tensors of a state dict by their names."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        raise TorchFileError(
            f"{path} is not a whole zip archive; it must be a state dict saved by PyTorch 1.6 or later."
        ) from None
    except OSError as error:
        raise TorchFileError(f"{path} cannot be read: {error.strerror}.") from None
    with archive:
        try:
            return _read(path, archive)
        except TorchFileError:
            raise
        except _BROKEN as error:
            raise TorchFileError(f"{path} is damaged: {type(error).__name__} while reading it.") from None


def estimator(path: pathlib.Path) -> network.Estimator:
    """The estimator in a file."""
    return from_state_dict(state_dict(path), source=str(path))


def from_state_dict(tensors: Mapping[str, np.ndarray], *, source: str) -> network.Estimator:
    """The estimator with these tensors: any number of GRU and decoder layers, of any widths.

    source: where they come from, for error messages.
    """
    rest = _Rest(source, dict(tensors))
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
        # Odd numbers are activations, which have no parameters.
        inputs, name = outputs, f"decoder.{2 * len(decoder)}"
    result = network.Estimator(
        layers=tuple(layers),
        decoder=tuple(decoder),
        mean_head=rest.take_dense("decoder_output", inputs, 1),
        log_std_head=rest.take_dense("decoder_output_logstd", inputs, 1),
    )
    if rest.tensors:
        raise TorchFileError(f"{source} holds no TraCeS estimator: it has no place for {next(iter(rest.tensors))!r}.")
    return result


@dataclasses.dataclass(frozen=True)
class _Rest:
    """The tensors of a state dict that have not found their place yet."""

    source: str
    tensors: dict[str, np.ndarray]

    def find(self, name: str, *, rank: int) -> np.ndarray:
        if name not in self.tensors:
            raise TorchFileError(f"{self.source} holds no TraCeS estimator: {name!r} is missing.")
        tensor = self.tensors[name]
        if tensor.ndim != rank:
            raise TorchFileError(f"{self.source}: {name} has {tensor.ndim} dimensions; it must have {rank}.")
        return tensor

    def take(self, name: str, *shape: int) -> jax.Array:
        """float32; a matrix comes as [outputs, inputs] and goes as [inputs, outputs]."""
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


# Notes about tensors are tuples: a pickle can hang attributes on other objects, but cannot change these.
class _Storage(NamedTuple):
    dtype: str
    key: str
    size: int


class _Tensor(NamedTuple):
    storage: object
    offset: object
    shape: object
    strides: object


class _Unpickler(pickle.Unpickler):
    """A reader of pickles for which only tensors and dictionaries of them exist."""

    def __init__(self, path: pathlib.Path, content: bytes):
        super().__init__(io.BytesIO(content))
        self._path = path

        # Of this reader alone: what a pickle does to a function it was given ends with it.
        def note_tensor(storage, offset, shape, strides, requires_grad, hooks, metadata=None):
            return _Tensor(storage, offset, shape, strides)

        self._names: dict[tuple[str, str], object] = {
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): note_tensor,
            **{("torch", name): dtype for name, dtype in _DTYPES.items()},
        }

    def find_class(self, module: str, name: str) -> object:
        """What a name in the pickle stands for."""
        if (module, name) not in self._names:
            full = f"{module}.{name}"
            raise TorchFileError(f"{self._path} is refused: it names {full!r}; a state dict holds tensors alone.")
        return self._names[module, name]

    def persistent_load(self, identity: object) -> _Storage:
        """A reference to something outside the pickle: in our files always a storage."""
        match identity:
            case ("storage", str() as dtype, str() as key, str(), int() as size) if dtype in _DTYPES.values():
                return _Storage(dtype=dtype, key=key, size=size)
        raise TorchFileError(f"{self._path} is refused: it refers to something that is not the storage of a tensor.")


def _read(path: pathlib.Path, archive: zipfile.ZipFile) -> dict[str, np.ndarray]:
    pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise TorchFileError(f"{path} is not a file of PyTorch: it must hold one data.pkl, not {len(pickles)}.")
    folder = pickles[0].removesuffix("data.pkl")
    order = _BYTE_ORDERS[archive.read(f"{folder}byteorder")] if f"{folder}byteorder" in archive.namelist() else "<"
    content = archive.read(pickles[0])
    for opcode, argument, _ in pickletools.genops(content):
        # Python makes room for as many remembered objects as the largest number says; there cannot be that many.
        if opcode.name in ("PUT", "LONG_BINPUT") and argument is not None and argument > len(content):
            raise TorchFileError(f"{path} is damaged: it numbers an object {argument}.")
    contents = _Unpickler(path, content).load()
    if not isinstance(contents, dict):
        raise TorchFileError(f"{path} is not a state dict: it holds an object of type {type(contents).__name__!r}.")
    arrays = {}
    for name, tensor in contents.items():
        if not isinstance(name, str) or not isinstance(tensor, _Tensor):
            raise TorchFileError(f"{path} is not a state dict: entry {name!r} is not a tensor.")
        if not isinstance(tensor.storage, _Storage):
            raise TorchFileError(f"{path} is damaged: {name!r} has no storage.")
        dtype = np.dtype(order + tensor.storage.dtype)
        numbers = archive.read(f"{folder}data/{tensor.storage.key}")
        if len(numbers) != tensor.storage.size * dtype.itemsize:
            right = f"{tensor.storage.size} numbers of {dtype.itemsize} bytes"
            raise TorchFileError(f"{path} is damaged: the storage of {name!r} has {len(numbers)} bytes for {right}.")
        arrays[name] = _view(path, name, np.frombuffer(numbers, dtype), tensor)
    return arrays


def _view(path: pathlib.Path, name: str, storage: np.ndarray, tensor: _Tensor) -> np.ndarray:
    """The tensor's entries as an array of its own, in the machine's byte order."""
    offset, shape, strides = tensor.offset, tensor.shape, tensor.strides
    if not (_is_size(offset) and _are_sizes(shape) and _are_sizes(strides) and len(shape) == len(strides)):
        raise TorchFileError(f"{path} is damaged: {name!r} has no proper offset, shape and strides.")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    # A tensor may have entries in common with others but, as a weight, not with itself.
    entries: int = math.prod(shape)
    if entries > storage.size or (entries and last >= storage.size):
        raise TorchFileError(f"{path} is damaged: {name!r} of shape {list(shape)} lies outside its storage.")
    steps = tuple(stride * storage.itemsize for stride in strides)
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)
    return view.astype(storage.dtype.newbyteorder("="))


def _is_size(number: object) -> TypeGuard[int]:
    return type(number) is int and number >= 0


def _are_sizes(numbers: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(numbers, tuple) and all(_is_size(number) for number in numbers)
