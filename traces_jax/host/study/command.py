"""A study from its file to its report."""

import contextlib
import dataclasses
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import rich.console
import rich.live

from traces_jax.host import cli, errors, files, locks, runtime
from traces_jax.host.study import plan, read, record, runner, show
from traces_jax.host.study.engines.base import Engine
from traces_jax.host.study.engines.local import Local
from traces_jax.host.study.engines.ray_cluster import RayCluster
from traces_jax.host.study.engines.slurm import Slurm
from traces_jax.host.study.outcomes import State
from traces_jax.host.study.plan import Step

FAILED = 1
_LOCK = "study.lock"
ENGINES = ("local", "ray", "slurm")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line says.

    jobs: None for as many as there is room for. shared: whether Ray's workers see `out`. slurm: parameters of submitit.
    """

    out: pathlib.Path
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int | None
    jobs: int | None
    engine: str
    retries: int
    cpus: int
    gpus: int
    shared: bool
    slurm: Mapping[str, str | int]


def parameters(given: Sequence[str]) -> dict[str, str | int]:
    """What --slurm says, name -> value; whole numbers as such."""
    found: dict[str, str | int] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise errors.UserError(f"--slurm has {text!r}, which is not right: it must be such as timeout_min=240.")
        found[name] = int(value) if value.isdecimal() else value
    return found


def status(file: pathlib.Path, options: Options, *, as_json: bool) -> int:
    """Prints how far a study is, whoever runs it."""
    steps = plan.make(read.study(file), options.tasks, options.methods, options.seeds)
    seen = show.look(options.out, steps.values())
    if as_json:
        print(show.as_json(seen, steps))
    else:
        rich.console.Console().print(show.table(seen, State))
    return cli.OK


def run(file: pathlib.Path, options: Options) -> int:
    """Runs or goes on with a study, and makes its report."""
    study = read.study(file)
    steps = plan.make(study, options.tasks, options.methods, options.seeds)
    jobs = _check(options)
    with alone(options.out):
        record.write(options.out, study, steps.values())
        with _engine(options) as engine:
            going = runner.Runner(
                options.out.resolve(),
                steps,
                engine,
                jobs=jobs,
                retries=options.retries,
                cpus=options.cpus,
                gpus=options.gpus,
                path=os.pathsep.join(entry or os.getcwd() for entry in _search_path()),
            )
            complete = _watch(going, options.out, steps)
        seen = show.look(options.out, steps.values())
        if any(own.state == State.FAILED for own in seen.values()):
            rich.console.Console().print(show.table(seen, (State.FAILED,)))
        else:
            print(show.summary(seen))
        if not complete:
            print("stopped; the same command goes on from there")
            return cli.STOPPED
        if any(own.state == State.DONE and steps[name].row for name, own in seen.items()):
            _report(options.out)
    return FAILED if any(own.state != State.DONE for own in seen.values()) else cli.OK


def _check(options: Options) -> int:
    """Refuses what no engine can do. Returns how many jobs may run at a time."""
    for name, value, least in (("retries", options.retries, 0), ("cpus", options.cpus, 1), ("gpus", options.gpus, 0)):
        if value < least:
            raise errors.UserError(f"--{name}={value} is not right: it must be at least {least}.")
    if options.jobs is not None and options.jobs < 1:
        raise errors.UserError(f"--jobs={options.jobs} is not right: it must be at least 1.")
    if options.engine != "local":
        return options.jobs or sys.maxsize
    cores = runtime.core_count()
    most = cores // options.cpus
    if options.gpus or not most or (options.jobs or 1) > most:
        raise errors.UserError(
            f"--jobs={options.jobs or 1} with --cpus={options.cpus} and --gpus={options.gpus} is not right: this "
            f"machine has {cores} cores, each for one run, and --engine=local gives no GPUs away."
        )
    return options.jobs or most


@contextlib.contextmanager
def alone(out: pathlib.Path) -> Iterator[None]:
    """Makes the folder and keeps other calls of a study out of it."""
    if out.exists() and not (out / _LOCK).exists() and any(out.iterdir()):
        raise errors.UserError(f"--out={out} exists and is not a study; give another folder.")
    with files.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    in_use = lambda holder: errors.UserError(  # noqa: E731
        f"study folder {out} is in use by {holder}; wait for it, or look with --status."
    )
    with locks.alone(out / _LOCK, in_use):
        yield


@contextlib.contextmanager
def _engine(options: Options) -> Iterator[Engine]:
    engine: Engine
    if options.engine == "ray":
        engine = RayCluster(shared=options.shared)
    elif options.engine == "slurm":
        engine = Slurm(options.out.resolve(), options.slurm)
    else:
        engine = Local()
    try:
        yield engine
    finally:
        engine.close()


def _search_path() -> list[str]:
    """Where Python looks for own tasks: here, and where it is told to."""
    return ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def _watch(going: runner.Runner, out: pathlib.Path, steps: Mapping[str, Step]) -> bool:
    """Runs with a live table on a terminal, and with lines elsewhere."""
    console = rich.console.Console()
    if not console.is_terminal:
        last = [""]

        def say() -> None:
            text = show.summary(show.look(out, steps.values()))
            if text != last[0]:
                print(text, flush=True)
            last[0] = text

        return going.run(say)
    with rich.live.Live(console=console, transient=True, auto_refresh=False) as live:
        states = (State.RUNNING, State.FAILED)
        return going.run(lambda: live.update(show.table(show.look(out, steps.values()), states), refresh=True))


def _report(out: pathlib.Path) -> None:
    from traces_jax.host.report import make  # it draws, and takes its time to be loaded

    make.make([out], out / "report")
    print(f"report: {out / 'report' / 'index.html'}")
