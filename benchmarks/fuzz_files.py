"""Fuzz the readers of files: PYTHONPATH=tests python -m benchmarks.fuzz_files --flips 1000 --seed 0

Each format has a good file, made as the tests make theirs. A byte of it is changed, a thousand times over, and it is
cut short at every place. Readers must take what is left, or refuse it with one of our own errors, within 5 s and 1 GB.
They work in another process, because a reader in C may take the process with it.
"""

import collections
import dataclasses
import json
import multiprocessing
import pathlib
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

import numpy as np
import test_import_torch
import test_pretrain
import test_report
from absl import flags
from helpers import make_config

from traces_jax import config as config_lib
from traces_jax.host import cli, errors
from traces_jax.host.data import arrays, import_torch
from traces_jax.host.report import read as report_read
from traces_jax.host.run import folder, metrics

# Seconds of computing and bytes that a reader may need; a clock would count what others do on the machine.
SECONDS, BYTES = 5.0, 1e9
# Seconds by the clock after which it is said to hang.
_PATIENCE = 60.0
_SENTENCES = (*errors.USER_ERRORS, import_torch.TorchFileError)


@dataclasses.dataclass(frozen=True)
class Format:
    """How a good file is made, and how a file is read.

    Attributes:
      name: of the file.
      good: what is to be damaged, as it is made in an empty folder; files beside it stay as they are.
      read: reads the file at a path.
      put: makes a file of damaged content.
    """

    name: str
    good: Callable[[pathlib.Path], bytes]
    read: Callable[[pathlib.Path], object]
    put: Callable[[pathlib.Path, bytes], object] = pathlib.Path.write_bytes


def _torch(folder: pathlib.Path) -> bytes:
    sizes = {"features": 2, "hidden": 1, "layers": 1, "decoder": (2,)}
    return test_import_torch.save_arrays(folder / "a.pt", test_import_torch.estimator_arrays(**sizes)).read_bytes()


_DESCRIPTION = "archive/data.pkl"


def _description(folder: pathlib.Path) -> bytes:
    (folder / "good.pt").write_bytes(_torch(folder))
    with zipfile.ZipFile(folder / "good.pt") as archive:
        return archive.read(_DESCRIPTION)


def _put_description(path: pathlib.Path, content: bytes) -> None:
    """Into the good archive: its checksum is right, so that it is read."""
    with zipfile.ZipFile(path.with_name("good.pt")) as good, zipfile.ZipFile(path, "w") as changed:
        for name in good.namelist():
            changed.writestr(name, content if name == _DESCRIPTION else good.read(name))


def _actions(save: Callable) -> Callable[[pathlib.Path], bytes]:
    def good(folder: pathlib.Path) -> bytes:
        save(folder / "a.npz", actions=np.linspace(-1, 1, 30).reshape(10, 3), qpos0=np.zeros(6, np.float32))
        return (folder / "a.npz").read_bytes()

    return good


def _member(folder: pathlib.Path) -> bytes:
    np.save(folder / "a.npy", np.linspace(-1, 1, 30).reshape(10, 3))
    return (folder / "a.npy").read_bytes()


def _put_member(path: pathlib.Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("actions.npy", content)


def _read_actions(path: pathlib.Path) -> None:
    given = arrays.read(path, "actions")
    if "actions" in given:
        arrays.numbers(path, "actions", given["actions"])


def _recording(**options) -> Callable[[pathlib.Path], bytes]:
    return lambda folder: test_pretrain.write(
        folder / "a.hdf5", test_pretrain.record(episodes=8), **options
    ).read_bytes()


def _read_recording(path: pathlib.Path) -> None:
    with test_pretrain.opened(path, test_pretrain.config_of(), say=lambda text: None) as recording:
        recording.rows(np.arange(min(recording.count, 3)))
        recording.costs(np.arange(min(recording.count, 3)))


def _read_rows(path: pathlib.Path) -> None:
    list(metrics.read(path))
    metrics.Follower(path, ["seed0"], 20, ["episode/cost"]).look()


def _run(name: str) -> Callable[[pathlib.Path], bytes]:
    """A file of a finished run, with all others beside it."""

    def good(folder: pathlib.Path) -> bytes:
        run = test_report.write_run(folder / "run", {"seed=0": ([1.0, 2.0], [3.0, 40.0])})
        test_report.write_diagnostics(run, ["seed=0"])
        for path in run.iterdir():
            path.rename(folder / path.name)
        run.rmdir()
        return (folder / name).read_bytes()

    return good


def _report(name: str) -> Format:
    return Format(name, _run(name), lambda path: report_read.read(path.parent, "run"))


def _rows(folder: pathlib.Path) -> bytes:
    row = {"lane": "seed0", "iteration": 0, "steps": 100, "seconds": 0.5, "episode/return": None, "episode/cost": 1e-3}
    return "".join(json.dumps(row | {"iteration": index}) + "\n" for index in range(20)).encode()


FORMATS = {
    "pt": Format("a.pt", _torch, import_torch.estimator),
    "pt description": Format("a.pt", _description, import_torch.estimator, _put_description),
    "npz": Format("a.npz", _actions(np.savez), _read_actions),
    "npz packed": Format("a.npz", _actions(np.savez_compressed), _read_actions),
    "npz member": Format("a.npz", _member, _read_actions, _put_member),
    "hdf5": Format("a.hdf5", _recording(), _read_recording),
    "hdf5 packed": Format("a.hdf5", _recording(chunks=True, compression="gzip"), _read_recording),
    "config.json": Format(
        "config.json",
        lambda folder: json.dumps(config_lib.to_dict(make_config()), indent=2).encode(),
        lambda path: folder.load_config(path.parent),
    ),
    "metrics.jsonl": Format("metrics.jsonl", _rows, _read_rows),
    "report: config.json": _report("config.json"),
    "report: metrics.jsonl": _report("metrics.jsonl"),
    "report: evaluation.npz": _report("evaluation.npz"),
    "report: diagnostics.npz": _report("diagnostics.npz"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One damaged file. at: where; flip: what the byte there is changed by, or None if the file ends there."""

    format: str
    at: int
    flip: int | None

    def content(self, good: bytes) -> bytes:
        """The damaged file."""
        if self.flip is None:
            return good[: self.at]
        return good[: self.at] + bytes([good[self.at] ^ self.flip]) + good[self.at + 1 :]


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a case. problem: what should not have happened, or nothing."""

    case: Case
    seconds: float
    bytes: float
    problem: str


def cases(name: str, flips: int, seed: int, cuts: int | None = None) -> list[Case]:
    """Some changed bytes, and the file cut short at every place, or at some."""
    with tempfile.TemporaryDirectory() as folder:
        size = len(FORMATS[name].good(pathlib.Path(folder)))
    random = np.random.default_rng(seed)
    changed = [Case(name, int(random.integers(size)), int(random.integers(1, 256))) for _ in range(flips)]
    ends = range(size) if cuts is None else random.integers(size, size=cuts)
    return changed + [Case(name, int(end), None) for end in ends]


def results(todo: Sequence[Case]) -> Iterator[Result]:
    """Reads all cases in another process; in a new one after each that hung or crashed."""
    context = multiprocessing.get_context("spawn")
    done = 0
    while done < len(todo):
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, todo[done:]), daemon=True)
        process.start()
        theirs.close()
        # Imports and compilers have their time; it is no part of a case's.
        assert ours.poll(300) and ours.recv() == "ready"
        try:
            while done < len(todo):
                if not ours.poll(_PATIENCE):
                    yield Result(todo[done], _PATIENCE, 0.0, f"hung for {_PATIENCE} s")
                    done += 1
                    break
                yield ours.recv()
                done += 1
        except EOFError:
            process.join()
            yield Result(todo[done], 0.0, 0.0, f"ended its process ({process.exitcode})")
            done += 1
        finally:
            process.kill()
            process.join()


def _peak_memory() -> int:
    """Most bytes that this process has held. `getrusage` would count the parent's from before the start as well."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _work(pipe: Connection, todo: Sequence[Case]) -> None:
    with tempfile.TemporaryDirectory() as name:
        good = {}
        for place, format in enumerate({case.format for case in todo}):
            folder = pathlib.Path(name) / str(place)
            folder.mkdir()
            good[format] = folder, FORMATS[format].good(folder)
            FORMATS[format].put(folder / FORMATS[format].name, good[format][1])
            FORMATS[format].read(folder / FORMATS[format].name)
        pipe.send("ready")
        for case in todo:
            form = FORMATS[case.format]
            folder, content = good[case.format]
            form.put(folder / form.name, case.content(content))
            begin = time.process_time()
            problem = _problem(form, folder / form.name)
            seconds = time.process_time() - begin
            # The most that this process has ever had.
            memory = _peak_memory()
            if not problem and seconds > SECONDS:
                problem = f"took {seconds:.1f} s"
            if not problem and memory > BYTES:
                problem = f"needed {memory / 1e9:.1f} GB, or one before it did"
            pipe.send(Result(case, seconds, memory, problem))


def _problem(form: Format, path: pathlib.Path) -> str:
    try:
        form.read(path)
    except _SENTENCES as error:
        sentence = str(error)
        return "" if len(sentence) < 1000 and "\n" not in sentence else f"said {sentence[:200]!r}"
    except Exception as error:  # noqa: BLE001  whatever it is, it is what we look for
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {pathlib.Path(place.filename).name}:{place.lineno}"
    return ""


_FLIPS = flags.DEFINE_integer("flips", 1000, "Changed bytes for each format.")
_FORMATS = flags.DEFINE_list("fuzzed", list(FORMATS), "Formats of files, separated by commas.")
# Other drivers have this flag too, and tests load them into one process.
_SEED = flags.DEFINE_integer("seed", 0, "Another changes other bytes.", allow_override=True)


def main() -> int:
    """The command line: a line for each format, and one for each kind of problem."""
    for name in set(_FORMATS.value) - set(FORMATS):
        raise config_lib.unknown("format", name, list(FORMATS))
    print(f"{'format':24} {'cases':>6} {'slowest':>8} {'peak memory':>12} {'problems':>8}")
    code = cli.OK
    for name in _FORMATS.value:
        found = list(results(cases(name, _FLIPS.value, _SEED.value)))
        wrong = [result for result in found if result.problem]
        slowest, memory = max(result.seconds for result in found), max(result.bytes for result in found)
        print(f"{name:24} {len(found):6} {slowest:6.2f} s {memory / 1e6:9.0f} MB {len(wrong):8}", flush=True)
        for problem, count in collections.Counter(result.problem for result in wrong).items():
            first = next(result.case for result in wrong if result.problem == problem)
            print(f"  {count} times {problem}, first at {first.at}, changed by {first.flip}")
        code = 1 if wrong else code
    return code


if __name__ == "__main__":
    cli.run(main)
