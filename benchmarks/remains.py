"""What a command leaves behind, in a form that can be compared: without clocks, process numbers and names of runs."""

import json
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

import h5py
import jax
import numpy as np
from tensorboardX.proto import event_pb2

from traces_jax.host.run import build, checkpoint, folder, metrics

_STATES = ("checkpoints", "best")
# Fields of descriptions that differ from call to call. Commands name the folder they write to.
_PASSING = ("identity", "command", "seconds")


def of(path: pathlib.Path) -> dict[str, Any]:
    """Everything in a file or folder: name -> content that is equal if, and only if, it is the same to the bit."""
    if path.is_file():
        return _file(path)
    found: dict[str, Any] = {}
    for child in sorted(path.rglob("*")):
        name = child.relative_to(path)
        if child.is_dir() or name.parts[0] in _STATES or name.name == "run.lock":
            continue
        # TensorBoard's names hold the time.
        key = name.parent if name.parts[0] == "tensorboard" else name
        found |= {f"{key}: {part}": content for part, content in _file(child).items()}
    for kind in _STATES:
        if (path / kind).is_dir():
            found |= {f"{kind}/{part}": content for part, content in _states(path, kind).items()}
    return found


def differences(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names of what is not the same, or is on one side only."""
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a metrics file without what a clock said."""
    return [{k: v for k, v in row.items() if not _is_time(k)} for row in metrics.read(path)]


def events(path: pathlib.Path) -> Iterator[tuple[int, str, float]]:
    """Step, name and value of every scalar in a file of TensorBoard, in their order, without what a clock said."""
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("Q", data[:8])
        # A checksum of 4 bytes follows the size, and another the event.
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        yield from ((event.step, own.tag, own.simple_value) for own in event.summary.value if not _is_time(own.tag))


def _is_time(name: str) -> bool:
    return name == "seconds" or name.startswith("stage/")


def _file(path: pathlib.Path) -> dict[str, Any]:
    """The parts of a file."""
    if ".tfevents." in path.name:
        return {"scalars": list(events(path))}
    if path.suffix == ".jsonl":
        return {"rows": rows(path)}
    if path.suffix == ".json":
        tree = json.loads(path.read_text(encoding="utf-8"))
        return {name: value for name, value in tree.items() if name not in _PASSING}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: _plain(values) for name, values in arrays.items()}
    if path.suffix == ".hdf5":
        with h5py.File(path) as file:
            return {name: _plain(values[()]) for name, values in file.items()} | dict(file.attrs)
    return {"bytes": path.read_bytes()}


def _states(path: pathlib.Path, kind: str) -> dict[str, Any]:
    """All checkpoints of a run: their arrays, what is noted of them, and whatever else lies there."""
    found: dict[str, Any] = {"names": sorted(child.name for child in (path / kind).iterdir())}
    abstract = build.build(folder.load_config(path)).program.abstract()
    saved = checkpoint.Checkpoints(path / kind, identity=None, read_only=True)
    try:
        for iteration in saved.iterations():
            notes = {name: value for name, value in saved.notes(iteration).items() if name != "run"}
            found[f"{iteration} notes"] = notes
            for place, leaf in jax.tree_util.tree_leaves_with_path(saved.restore(abstract, iteration)):
                is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                values = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
                found[f"{iteration} {jax.tree_util.keystr(place)}"] = _plain(values)
    finally:
        saved.close()
    return found


def _plain(values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """An array so that == compares all of it, bit for bit."""
    return str(values.dtype), values.shape, values.tobytes()
