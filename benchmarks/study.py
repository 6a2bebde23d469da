"""What a study costs: python -m benchmarks.study

Prints, in seconds: two runs side by side and one after the other; 20 short runs by a study and by plain calls of
`train`; the start of a run whose programs are compiled; plan and status of a study with 1000 rows. The machine should
have nothing else to do. Two cores are needed.
"""

import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import commands
from traces_jax.host import cli

# Environment steps of a run.
_LONG, _SHORT = 1_000_000, 20_000
_STUDY = """
from traces_jax.host.study.rows import Row, Study


def get_study():
    settings = {{"steps": {steps}, "run.tensorboard": False}}
    clips = [{{**settings, "ppo.clip": 0.2 + n / 1e4}} for n in range({rows})]
    return Study([Row("BallRun", "oracle", f"clip {{n}}", own, seeds=1) for n, own in enumerate(clips)])
"""


def study(root: pathlib.Path, name: str, rows: int, steps: int, *flags: str) -> tuple[float, float]:
    """Runs a study of BallRun with the true cost. Returns wall and CPU seconds."""
    file = root / f"{name}.py"
    file.write_text(_STUDY.format(rows=rows, steps=steps), encoding="utf-8")
    return call(["traces_jax.study", str(file), f"--out={root / name}", *flags])


def plain(root: pathlib.Path, name: str, number: int, steps: int, cores: set[int]) -> tuple[float, float]:
    """One of these runs without a study."""
    line = ["traces_jax.train", "--config=experiments/ball_run.py", "--config.method.source=oracle"]
    line += [f"--config.steps={steps}", "--config.run.tensorboard=false", f"--config.ppo.clip={0.2 + number / 1e4}"]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        return call([*line, f"--run_dir={root / name / str(number)}"])
    finally:
        os.sched_setaffinity(0, before)


def call(line: Sequence[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    began, before = time.monotonic(), _cpu()
    subprocess.run([sys.executable, "-m", *line], cwd=commands.ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def total(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Sums of wall and CPU seconds."""
    return sum(wall for wall, _ in times), sum(cpu for _, cpu in times)


def main() -> int:
    """The command line."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="traces_jax_study_"))
    core, both = {min(os.sched_getaffinity(0))}, os.sched_getaffinity(0)
    # Not measured: all programs are compiled once before.
    study(root, "compile", 1, _LONG, "--jobs=1")
    plain(root, "compile_both", 0, _LONG, both)
    found = {
        "start and end of a run of 5 iterations, programs compiled": plain(root, "start", 0, 5_000, core),
        "plan and status of 1000 rows": study(root, "large", 1000, 5_000, "--status"),
        "2 runs side by side": study(root, "beside", 2, _LONG, "--jobs=2"),
        "2 runs one after the other, a core each": study(root, "after", 2, _LONG, "--jobs=1"),
        "2 runs one after the other, both cores": total([plain(root, "wide", n, _LONG, both) for n in range(2)]),
        "20 short runs by a study, one at a time": study(root, "short", 20, _SHORT, "--jobs=1"),
        "20 short runs by calls of train": total([plain(root, "calls", n, _SHORT, core) for n in range(20)]),
        "the report at the end of 20 runs": call(
            ["traces_jax.report", str(root / "short"), f"--out={root / 'report'}"]
        ),
    }
    for name, (wall, cpu) in found.items():
        print(f"{name}: {wall:.1f} s, {cpu:.1f} s of CPU")
    shutil.rmtree(root)
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
