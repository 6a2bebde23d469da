"""Kill commands at random moments: python -m benchmarks.kill --seed 0

Three trainings with TensorBoard on, `collect`, `pretrain` and `report` are killed (signal 9) and started again with the
same command until they end. What they leave must be what undisturbed ones leave, bit for bit but for clocks, and
nothing else may lie there. Moments are random in the life of a process, or aimed at what is most delicate.
"""

import collections
import pathlib
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

from absl import flags

from benchmarks import commands
from benchmarks.commands import Command
from traces_jax.host import cli, runtime

ANYWHERE, MAKING, SAVE, EVALUATION = "anywhere", "making files", "saving", "evaluation"
# Each tuple is one folder, killed at these moments in turn: 3 * 12 + 14 = 50.
_TRAINING = 3 * ((MAKING, ANYWHERE, SAVE, EVALUATION),)
_OTHERS = {
    "collect": ((MAKING, ANYWHERE, ANYWHERE), (ANYWHERE, MAKING)),
    "pretrain": ((MAKING, ANYWHERE, ANYWHERE), (ANYWHERE, MAKING)),
    "report": ((MAKING, ANYWHERE), (ANYWHERE, MAKING)),
}
# How long after its first sign a delicate thing may still go on, seconds.
_SOON = {MAKING: 0.03, SAVE: 0.03, EVALUATION: 1.5}
# Between two looks, seconds.
_PAUSE = 0.0005


class Tally:
    """Kills by command and moment, and sentences about what went wrong."""

    def __init__(self) -> None:
        self.kills: collections.Counter[tuple[str, str]] = collections.Counter()
        self.folders: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []


def survive(
    name: str, command: Command, root: pathlib.Path, plans: Sequence[Sequence[str]], chance: random.Random, tally: Tally
) -> None:
    """Kills a command at the planned moments, and sees what it leaves. Each plan has a folder of its own."""
    expected, seconds = commands.undisturbed(command, root / "undisturbed")
    for number, plan in enumerate(plans):
        left = list(plan)
        # A process may end before its moment comes; those that are left then have a new folder.
        for attempt in range(10 * len(plan)):
            if attempt and not left:
                break
            folder = root / f"{number}.{attempt}"
            folder.mkdir()
            while left and killed(command, folder, left[0], seconds, chance):
                tally.kills[name, left.pop(0)] += 1
            problem = command.finish(folder)
            different = [] if problem else commands.remains.differences(expected, command.remains(folder))
            tally.folders[name] += 1
            if problem or different:
                tally.wrong.append(f"{name}, {folder}, killed at {plan}: {problem or ', '.join(different[:5])}")


def killed(command: Command, folder: pathlib.Path, moment: str, seconds: float, chance: random.Random) -> bool:
    """Starts a command and kills it. Returns whether it was still running then. seconds: its whole life."""
    child = command.start(folder)
    try:
        if moment == ANYWHERE:
            _wait(child, lambda: False, chance.uniform(0, seconds))
        if moment == SAVE:
            # Not always the first save. Late enough for one that begins afterwards to be seen.
            rows = chance.randrange(command.iterations * 3 // 4)
            _wait(child, lambda: command.rows(folder) >= rows, 10 * seconds)
        if moment in _SOON:
            _wait(child, lambda: _sign(command, folder, moment), 10 * seconds)
            _wait(child, lambda: False, chance.uniform(0, _SOON[moment]))
        running = child.poll() is None
    finally:
        child.kill()
        child.communicate()
    return running


def _wait(child: subprocess.Popen, condition: Callable[[], bool], seconds: float) -> None:
    """Until the condition holds, the child has ended or the time is over."""
    end = time.monotonic() + seconds
    while child.poll() is None and time.monotonic() < end and not condition():
        time.sleep(_PAUSE)


def _sign(command: Command, folder: pathlib.Path, moment: str) -> bool:
    """Whether something delicate can be seen to begin."""
    if moment == MAKING:
        return any(folder.iterdir())
    run = folder / command.out
    if moment == EVALUATION:
        return (run / f"checkpoints/{command.iterations}").exists()
    return any("tmp" in path.name for kind in ("best", "checkpoints") for path in run.glob(f"{kind}/*"))


_SEED = flags.DEFINE_integer("seed", 0, "Another has other moments.", allow_override=True)


def main() -> int:
    """The command line."""
    runtime.setup()
    chance, tally = random.Random(_SEED.value), Tally()
    root = pathlib.Path(tempfile.mkdtemp(prefix="traces_jax_kill_"))
    todo = {name: commands.training(name) for name in commands.TRAININGS}
    runs = [root / name.replace(" ", "_") for name in todo]
    todo |= {
        "collect": commands.collecting(),
        "pretrain": commands.pretraining(root / "collect/undisturbed/1/data.hdf5"),
        "report": commands.reporting(*(run / "undisturbed/1/run" for run in runs)),
    }
    for name, command in todo.items():
        survive(name, command, root / name.replace(" ", "_"), _OTHERS.get(name, _TRAINING), chance, tally)
        kills = ", ".join(f"{count} {moment}" for (own, moment), count in sorted(tally.kills.items()) if own == name)
        print(f"{name}: {kills}; {tally.folders[name]} folders compared", flush=True)
    print(
        f"{tally.kills.total()} kills, {len(tally.wrong)} of {tally.folders.total()} folders are not as they should be"
    )
    for sentence in tally.wrong:
        print(sentence)
    if not tally.wrong:
        # Else they are there to look at.
        shutil.rmtree(root)
    return 1 if tally.wrong else cli.OK


if __name__ == "__main__":
    cli.run(main)
