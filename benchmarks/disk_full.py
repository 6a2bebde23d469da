"""Fill the disk under a training: python -m benchmarks.disk_full --seed 0   (needs the right to mount, and Linux)

A training with TensorBoard on writes to a small disk in memory, which is filled at a random moment. It must end with
exit code 2 and one sentence that names the last good checkpoint. With room again, the same command must go on to the
end of an undisturbed one.
"""

import contextlib
import itertools
import os
import pathlib
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator

from absl import flags

from benchmarks import commands
from benchmarks.commands import Command
from traces_jax.host import cli, runtime

# Bytes of the disk; several times what a run takes.
_SIZE = 32 << 20
# Within so many seconds a process that finds no room must have ended.
_PATIENCE = 120
# Most bytes that are left when the disk is full: a save may begin and then fail.
_LEFT = 200_000


@contextlib.contextmanager
def disk(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A small disk of its own, empty at first."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: pathlib.Path, left: int) -> pathlib.Path:
    """Fills the disk up to `left` bytes. Returns the file that takes the room."""
    path = folder / "room"
    # The training writes at the same time and may take the last of it.
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while (free := _free(folder)) > left:
            file.write(bytes(min(free - left, _SIZE // 16)))
    return path


def _free(folder: pathlib.Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def problem_of(command: Command, folder: pathlib.Path, rows: int, left: int) -> str | None:
    """Fills the disk under a training up to `left` bytes when its metrics file has `rows` rows.

    Returns what is wrong with its end; None if it had all it needed by then.
    """
    child = command.start(folder)
    while child.poll() is None and command.rows(folder) < rows:
        time.sleep(0.001)
    room = fill(folder, left)
    try:
        _, said = child.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return f"hung for {_PATIENCE} s"
    finally:
        child.kill()
        room.unlink()
    if child.returncode == 0:
        return None
    sentence = said.strip()
    print(f"  code {child.returncode}: {sentence[:500]}", flush=True)
    named = "checkpoint" in sentence and "cannot be written" in sentence
    return "" if child.returncode == 2 and "\n" not in sentence and named else f"ended with {sentence!r}"


_SEED = flags.DEFINE_integer("seed", 0, "Another has other moments.", allow_override=True)
_TIMES = flags.DEFINE_integer("times", 10, "How often the disk is filled.", allow_override=True)


def main() -> int:
    """The command line."""
    runtime.setup()
    chance = random.Random(_SEED.value)
    command = commands.training("TraCeS, BallRun")
    wrong, full = [], 0
    with tempfile.TemporaryDirectory(prefix="traces_jax_disk_") as name:
        root = pathlib.Path(name)
        expected, _ = commands.undisturbed(command, root / "undisturbed")
        for attempt in itertools.count():
            with disk(root / str(attempt)) as folder:
                problem = problem_of(command, folder, chance.randrange(command.iterations), chance.randrange(_LEFT))
                full += problem is not None
                problem = problem or command.finish(folder)
                different = [] if problem else commands.remains.differences(expected, command.remains(folder))
                if problem or different:
                    wrong.append(problem or f"differs in {', '.join(different[:5])}")
                    print(f"  {wrong[-1]}", flush=True)
            if full == _TIMES.value:
                break
    print(f"full {full} times, {len(wrong)} ends are not as they should be")
    return 1 if wrong else cli.OK


if __name__ == "__main__":
    cli.run(main)
