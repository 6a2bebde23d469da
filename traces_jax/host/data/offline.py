"""Reads recorded episodes in DSRL's layout as labelled trajectories.

An HDF5 file with flat arrays over the steps of all episodes, one episode after the other:

  observations [N, O], actions [N, A], costs [N], terminals [N], timeouts [N]

An episode ends where terminals or timeouts is true. Costs may be missing if labels come from elsewhere (labels.by): a
file of labels names episodes by their number, a function sees them. Other arrays are not read. The file is read in
pieces: only the episodes' positions and labels stay in memory, and the trajectories that were requested last.
"""

import contextlib
import dataclasses
import math
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import h5py
import jax.numpy as jnp
import numpy as np

from traces_jax.config import Config
from traces_jax.core.normalize import RunningStatistics
from traces_jax.feedback import labelers
from traces_jax.feedback.trajectories import Shown, Trajectories
from traces_jax.host import errors
from traces_jax.host.data import archives, arrays
from traces_jax.host.label import exchange, votes
from traces_jax.host.label.store import Said
from traces_jax.sources import Answers, Labelled
from traces_jax.tasks import Task

_NEEDED = ("observations", "actions", "costs", "terminals", "timeouts")
# Steps read at a time; an episode that starts among them is read to its end.
_PIECE = 1 << 14
# Maximum bytes of a chunk. A chunk is read as a whole, so larger ones would defeat reading in pieces.
_CHUNK_BYTES = 1 << 27
# Allowed HDF5 filters. Others may need any amount of memory.
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
# Extra bytes of a stored chunk: a checksum, and compression may make it slightly longer.
_MORE = 1 << 18
# Upper bound of all values, so that the sum of their squares over all steps fits into float32.
_LARGEST = 1e12
# Exceptions of h5py for damaged content.
_BROKEN = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    MemoryError,
    zlib.error,
)

Data = Mapping[str, h5py.Dataset]


@dataclasses.dataclass(frozen=True)
class Recording:
    """The M complete episodes of an open file.

    Attributes:
      path: of the file.
      data: its arrays by name, open.
      horizon: maximum steps of an episode.
      first, length: [M] positions of the episodes.
      labels, mask: [M, P] labels of their prefixes, and which prefixes exist.
      statistics: of all observations.
    """

    path: pathlib.Path
    data: Data
    horizon: int
    first: np.ndarray
    length: np.ndarray
    labels: np.ndarray
    mask: np.ndarray
    statistics: RunningStatistics

    @property
    def count(self) -> int:
        """Episodes."""
        return len(self.first)

    @property
    def features(self) -> int:
        """Features of a step: observation and action."""
        return self.data["observations"].shape[1] + self.data["actions"].shape[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of one trajectory in memory."""
        return 4 * self.horizon * self.features

    def rows(self, chosen: np.ndarray) -> Trajectories:
        """The chosen [K] episodes, in that order."""
        inputs = np.zeros((len(chosen), self.horizon, self.features), np.float32)
        split = self.data["observations"].shape[1]
        # In file order, so that each compressed chunk is unpacked once.
        for place in np.argsort(chosen):
            first, length = self.first[chosen[place]], self.length[chosen[place]]
            inputs[place, :length, :split] = _read(self.path, self.data, "observations", first, first + length)
            inputs[place, :length, split:] = _read(self.path, self.data, "actions", first, first + length)
        # NumPy arrays: blocks are moved to devices as a whole.
        return Trajectories(inputs, self.length[chosen], self.labels[chosen], self.mask[chosen])  # type: ignore[arg-type]

    def costs(self, chosen: np.ndarray) -> np.ndarray:
        """Costs [K, T] of the chosen [K] episodes, NaN after their ends and if they are unknown."""
        result = np.full((len(chosen), self.horizon), np.nan, np.float32)
        if "costs" not in self.data:
            return result
        for place in np.argsort(chosen):
            first, length = self.first[chosen[place]], self.length[chosen[place]]
            result[place, :length] = _read(self.path, self.data, "costs", first, first + length)
        return result


@contextlib.contextmanager
def opened(path: pathlib.Path, source: Labelled, config: Config, say: Callable[[str], None]) -> Iterator[Recording]:
    """Opens a file, checks all of it against the source's task, and labels its episodes as the source wants them."""
    if not path.is_file():
        raise errors.UserError(f"--data={path} does not exist; give an HDF5 file in DSRL's layout.")
    try:
        file = h5py.File(path, "r")
    except _BROKEN as error:
        raise _damaged(path, error) from None
    with file:
        try:
            by_cost = labelers.kind(config.labels.by) == labelers.ORACLE
            data = {name: _dataset(path, file, name) for name in _NEEDED if by_cost or name != "costs"}
            _check_shapes(path, data, source.task)
            for name in data:
                _check_stored(path, name, data[name])
        except _BROKEN as error:
            raise _damaged(path, error) from None
        first, length, terminated = _episodes(path, data, source.task, say)
        yield _scan(path, data, source, config, (first, length, terminated))


def _dataset(path: pathlib.Path, file: h5py.File, name: str) -> h5py.Dataset:
    """An array stored in the file itself. Looked up without following links, which could lead to any other file."""
    links, key = file.id.links, name.encode()
    if links.exists(key) and links.get_info(key).type != h5py.h5l.TYPE_HARD:
        raise errors.UserError(f"{path}: {name} is a link to another place; the array itself must be there.")
    found = h5py.h5o.open(file.id, key) if links.exists(key) else None
    if not isinstance(found, h5py.h5d.DatasetID):
        raise errors.UserError(f"{path} has no array {name!r}; it must hold {', '.join(_NEEDED)}.")
    properties = found.get_create_plist()
    if properties.get_external_count() or properties.get_layout() == h5py.h5d.VIRTUAL:
        raise errors.UserError(f"{path}: {name} has its numbers in other files; they must be in this one.")
    dataset = h5py.Dataset(found)
    if dataset.shape is None:
        raise errors.UserError(f"{path}: {name} is empty; it must hold real numbers.")
    if dataset.dtype.kind not in "fiub":
        raise errors.UserError(f"{path}: {name} holds {dataset.dtype.name}; it must hold real numbers.")
    return dataset


def _check_shapes(path: pathlib.Path, data: Data, task: Task) -> None:
    steps = data["observations"].shape[:1]
    widths = {"observations": (task.observation_size,), "actions": (task.action_size,)}
    for name in data:
        right = (*steps, *widths.get(name, ()))
        if data[name].shape != right:
            raise arrays.wrong_shape(path, name, data[name], f"{list(right)} for {task.name}")


def _check_stored(path: pathlib.Path, name: str, dataset: h5py.Dataset) -> None:
    """Refuses a file that declares steps which were never written: there could be too many to read."""
    available = path.stat().st_size
    needed = math.prod(dataset.shape) * dataset.dtype.itemsize
    if dataset.chunks is None:
        stored = needed <= min(available, dataset.id.get_storage_size())
    else:
        size = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if size > _CHUNK_BYTES:
            raise errors.UserError(f"{path}: {name} has chunks of {size} bytes; at most {_CHUNK_BYTES} would be right.")
        densest = archives.DENSEST if _check_packing(path, name, dataset, size) else 1
        count = math.prod(-(-all_ // one) for all_, one in zip(dataset.shape, dataset.chunks, strict=True))
        stored = needed <= densest * available and count <= dataset.id.get_num_chunks()
    if needed and not stored:
        raise errors.UserError(f"{path}: {name} declares {dataset.shape[0]} steps that are not all in the file.")


def _check_packing(path: pathlib.Path, name: str, dataset: h5py.Dataset, size: int) -> bool:
    """Whether chunks are compressed. Checks their unpacked sizes, because HDF5 unpacks a chunk of any size."""
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
    if not set(filters) <= _FILTERS or len(set(filters)) < len(filters):
        raise errors.UserError(f"{path}: {name} has an unknown compression; gzip or none would be right.")
    if h5py.h5z.FILTER_DEFLATE not in filters:
        return False
    large: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(lambda info: large.append(info) if archives.DENSEST * info.size > _CHUNK_BYTES else None)
    for info in large:
        # A chunk that compression would not make smaller is stored uncompressed.
        packed = not info.filter_mask >> filters.index(h5py.h5z.FILTER_DEFLATE) & 1
        whole = info.size <= size + _MORE
        if whole and packed:
            _, content = dataset.id.read_direct_chunk(info.chunk_offset)
            whole = len(zlib.decompressobj().decompress(content, size + _MORE + 1)) <= size + _MORE
        if not whole:
            raise errors.UserError(f"{path}: {name} is damaged: a chunk unpacks to more than its {size} bytes.")
    return True


def _episodes(
    path: pathlib.Path, data: Data, task: Task, say: Callable[[str], None]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First step, length, and whether it terminated early, for each episode: [M] each."""
    steps = data["terminals"].shape[0]
    last: list[np.ndarray] = []
    terminated: list[np.ndarray] = []
    for begin in range(0, steps, _PIECE):
        end = min(begin + _PIECE, steps)
        over, timed_out = (_read(path, data, name, begin, end) > 0 for name in ("terminals", "timeouts"))
        (ended,) = np.nonzero(over | timed_out)
        last.append(begin + ended)
        terminated.append(over[ended])
    ends = np.concatenate([*last, np.zeros(0, int)]) + 1
    if not ends.size:
        raise errors.UserError(f"{path} has no end of an episode: terminals and timeouts are false everywhere.")
    first = np.concatenate([[0], ends[:-1]])
    length = ends - first
    if length.max() > task.horizon:
        longest = int(np.argmax(length > task.horizon))
        raise errors.UserError(
            f"{path}: the episode from step {first[longest]} on has {length[longest]} steps; "
            f"{task.name} has at most {task.horizon}."
        )
    if ends[-1] < steps:
        say(f"{path}: the last {steps - ends[-1]} steps have no end of an episode and are left out")
    return first, length.astype(np.int32), np.concatenate(terminated)


def _scan(
    path: pathlib.Path,
    data: Data,
    source: Labelled,
    config: Config,
    episodes: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Recording:
    """Reads everything once: checks that all numbers are finite, computes labels and statistics."""
    task, (first, length, _) = source.task, episodes
    if labelers.kind(config.labels.by) == labelers.PEOPLE:
        raise errors.UserError(
            "labels.by=people is not right: people label runs; for recorded data a file of labels, module:function or "
            "oracle would be right."
        )
    by_file = labelers.kind(config.labels.by) == labelers.FILE
    answers = exchange.episodes(exchange.read(pathlib.Path(config.labels.by))) if by_file else {}
    said: list[Answers] = []
    # In float64, because float32 sums over a whole file would lose too many digits.
    count, mean, squares = 0, np.zeros(task.observation_size), np.zeros(task.observation_size)
    for group in np.split(np.arange(len(first)), np.flatnonzero(np.diff(first // _PIECE)) + 1):
        begin, end = first[group[0]], first[group[-1]] + length[group[-1]]
        observation = _read(path, data, "observations", begin, end).astype(np.float64)
        _read(path, data, "actions", begin, end)
        new_mean, total = observation.mean(axis=0), count + len(observation)
        delta = new_mean - mean
        squares += np.square(observation - new_mean).sum(axis=0) + np.square(delta) * count * len(observation) / total
        mean += delta * len(observation) / total
        count = total
        said.append(_labels(path, data, source, config, (*episodes, group), answers))
    return Recording(
        path=path,
        data=data,
        horizon=task.horizon,
        first=first,
        length=length,
        labels=np.concatenate([np.asarray(own.labels) for own in said]),
        mask=np.concatenate([np.asarray(own.mask) for own in said]),
        statistics=RunningStatistics(
            count=jnp.asarray(count, jnp.float32),
            mean=jnp.asarray(mean, jnp.float32),
            squares=jnp.asarray(squares, jnp.float32),
        ),
    )


def _labels(
    path: pathlib.Path,
    data: Data,
    source: Labelled,
    config: Config,
    episodes: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    answers: Mapping[int, Sequence[Said]],
) -> Answers:
    """Labels [K, P] of a group of episodes.

    episodes: first step, length and early end of all [M], and the group [K]; answers: of a file, by episode.
    """
    first, of_all, terminated, group = episodes
    task, by, kind = source.task, config.labels.by, labelers.kind(config.labels.by)
    length = jnp.asarray(of_all[group])
    inside = np.arange(task.horizon) < of_all[group, None]

    def steps(name: str, *width: int) -> np.ndarray:
        values = np.zeros((len(group), task.horizon, *width), np.float32)
        values[inside] = _read(path, data, name, first[group[0]], first[group[-1]] + of_all[group[-1]])
        return values

    if kind == labelers.ORACLE:
        said = source.label(config, jnp.asarray(steps("costs")), length, jnp.asarray(terminated[group]))
        return Answers(labels=said, mask=source.mask(config, length))
    if kind == labelers.FUNCTION:
        seen = (steps("observations", task.observation_size), steps("actions", task.action_size), of_all[group])
        judged = jnp.asarray(labelers.judged(by, Shown(*seen)))  # type: ignore[arg-type]
        return source.told(config, judged, length, known=jnp.ones(len(group), bool))
    found = [votes.labels(source, config, answers.get(int(one), []), int(of_all[one])) for one in group]
    return Answers(*(jnp.asarray(np.stack(parts)) for parts in zip(*found, strict=True)))


def _read(path: pathlib.Path, data: Data, name: str, begin: int, end: int) -> np.ndarray:
    """A range of steps of an array as float32, checked for values that are too large."""
    try:
        values = data[name][begin:end]
    except _BROKEN as error:
        raise _damaged(path, error) from None
    values = values.astype(np.uint8) if values.dtype.kind == "b" else values
    return arrays.numbers(path, name, values, begin, largest=_LARGEST)


def _damaged(path: pathlib.Path, error: Exception) -> errors.UserError:
    reason = " ".join(str(error).split())[:160]
    return errors.UserError(f"--data={path} is not a complete HDF5 file ({reason}); give one in DSRL's layout.")
