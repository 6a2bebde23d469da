"""Estimates the memory of a run from its sizes, before anything is allocated.

The size of a lane's state is exact. Temporary memory is estimated from the floats that XLA was measured to hold for
each step of a rollout or refit: accurate within a factor of 2 (tests/test_memory.py, docs/benchmarks.md).
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from traces_jax import solvers, sources
from traces_jax.config import Config
from traces_jax.core import networks, parallel
from traces_jax.host import errors
from traces_jax.sources.base import FLOAT, KEPT, UPDATED, Part
from traces_jax.tasks import Task

# Floats held at once for each step of a rollout: per unit of the widest layer of the critics and of the actor, per
# entry of observation and action, and for rewards, costs, advantages and targets.
_CRITIC, _ACTOR, _OBSERVATION, _ACTION, _SCALARS = 7, 2, 4, 2, 20
# Initial states of environments are drawn for up to this many steps at once (see `rollout`).
_STARTS = 50
# The phase after the last iteration.
EVALUATION = "evaluation"
# A smaller value of this setting needs more memory.
_FRACTION = "query.fraction"


@dataclasses.dataclass(frozen=True)
class Machine:
    """The memory available to a run.

    Attributes:
      name: its name in messages.
      free: bytes available.
      pieces: number of such memories over which lanes are divided.
      copies: copies of a lane in one memory; devices that share a lane's environments have one each.
      checkpoints: whether checkpoints copy states here.
    """

    name: str
    free: int
    pieces: int
    copies: int
    checkpoints: bool


def check(config: Config, task: Task, lanes: int, grid: parallel.Grid) -> None:
    """Refuses a run that does not fit, with the setting to lower."""
    machine = _machine(grid)
    sentence = refusal(config, task, lanes, machine) if machine else ""
    if sentence:
        raise errors.UserError(sentence)


def note(config: Config, task: Task, lanes: int, grid: parallel.Grid) -> str:
    """The forecast, for the start of a run; empty where the size of the memory is unknown."""
    machine = _machine(grid)
    if machine is None:
        return ""
    needed = total(parts(config, task, state_bytes(task)), lanes, machine)
    return f"memory: about {_gigabytes(needed)}; {machine.name} has {_gigabytes(machine.free)}"


def iteration_bytes(config: Config, task: Task, grid: parallel.Grid, lanes: int) -> int:
    """Forecast of what one device needs for iterations, to be compared with `stated_bytes`."""
    found = parts(config, task, state_bytes(task))
    during = at_once([part for part in found if part.phase != EVALUATION])
    return -(-lanes // grid.mesh.devices.shape[0]) * sum(part.size for part in during)


def stated_bytes(stated: Any) -> int:
    """What a compiled chunk needs on one device. stated: `memory_analysis()` of it. Donated state counts once."""
    given, made = stated.argument_size_in_bytes, stated.output_size_in_bytes - stated.alias_size_in_bytes
    return given + made + stated.temp_size_in_bytes


def refusal(config: Config, task: Task, lanes: int, machine: Machine) -> str:
    """The error message for a run that does not fit; empty if it fits."""
    environment = state_bytes(task)

    def need(changed: Config, lanes: int) -> int:
        return total(parts(changed, task, environment), lanes, machine)

    needed = need(config, lanes)
    if needed <= machine.free:
        return ""
    largest = max(at_once(parts(config, task, environment)), key=lambda part: part.size)
    fields = [*largest.fields, *(["seeds"] if config.seeds > 1 else []), *(["sweep"] if config.sweep else [])]
    field = max(fields, key=lambda path: _excess(config, lanes, path))
    if field in ("seeds", "sweep"):
        value, count = (config.seeds, config.seeds) if field == "seeds" else (config.sweep, lanes // config.seeds)
        fits = _largest(lambda number: need(config, number * lanes // count) <= machine.free, count)
        right = f"at most {fits}{' combinations' if field == 'sweep' else ''} would fit"
    else:
        value = _get(config, field)
        fits = _largest(lambda number: need(_with(config, field, number), lanes) <= machine.free, _number(field, value))
        right = f"at {'least' if field == _FRACTION else 'most'} {_from_number(field, value, fits or 1)} would fit"
    return (
        f"{field}={value!r} is not right: the run would need about {_gigabytes(needed)}, most of it for "
        f"{largest.what}, and {machine.name} has {_gigabytes(machine.free)}; "
        f"{right if fits else 'this and other settings must be lowered'}."
    )


def at_once(found: Sequence[Part]) -> list[Part]:
    """The parts of the phase that needs the most, with those that are always needed."""
    phases: dict[str, int] = {}
    for part in found:
        if part.phase:
            phases[part.phase] = phases.get(part.phase, 0) + part.size
    largest = max(phases, key=lambda phase: phases[phase], default="")
    return [part for part in found if part.phase in ("", largest)]


def total(found: Sequence[Part], lanes: int, machine: Machine) -> int:
    """Bytes of the parts needed at once, for the lanes in one memory."""
    kept = sum(part.size for part in found if part.kept)
    one_lane = machine.copies * sum(part.size for part in at_once(found)) + (kept if machine.checkpoints else 0)
    return -(-lanes // machine.pieces) * one_lane


def state_bytes(task: Task) -> int:
    """Bytes of one environment's state."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(task.reset, _key())))


def _key() -> jax.Array:
    return jax.eval_shape(lambda: jax.random.key(0))


def parts(config: Config, task: Task, environment: int) -> list[Part]:
    """What one lane needs on one device. environment: bytes of one environment's state."""
    settings = config.environment
    source = sources.make(config, task)
    solver = solvers.make(config, task, one_lane_at_a_time=True)
    summary = source.summary_size(config)
    observation, action = task.observation_size + solver.carried_size(config), task.action_size
    actor = networks.weights(observation + summary, config.policy.hidden, action) + action
    reads = (observation, observation + summary)
    critics = sum(networks.weights(inputs, config.critic.hidden, 1) for inputs in reads)
    steps = FLOAT * settings.count * settings.steps
    sizes = ("environment.count", "environment.steps")
    evaluated = FLOAT * (action + _SCALARS) * task.horizon + (1 + _STARTS) * environment
    found = [
        Part("the actor", FLOAT * KEPT * actor, ("policy.hidden",), kept=True),
        Part("updates of the actor", FLOAT * UPDATED * actor, ("policy.hidden",), phase="update"),
        Part("the critics", FLOAT * KEPT * critics, ("critic.hidden",), kept=True),
        Part("updates of the critics", FLOAT * UPDATED * critics, ("critic.hidden",), phase="update"),
        Part(
            "values of a rollout",
            steps * _CRITIC * _widest(config.critic.hidden),
            ("critic.hidden", *sizes),
            phase="values",
        ),
        Part(
            "actions of a rollout",
            steps * _ACTOR * _widest(config.policy.hidden),
            ("policy.hidden", *sizes),
            phase="actions",
        ),
        Part("rollouts", steps * (_OBSERVATION * observation + _ACTION * action + _SCALARS), sizes),
        Part("environments", settings.count * environment, ("environment.count",), kept=True),
        Part("starts of environments", settings.count * _STARTS * environment, ("environment.count",), phase="rollout"),
        Part(
            "the last episodes",
            2 * FLOAT * (config.lagrange.window + config.mean_window),
            ("lagrange.window",),
            kept=True,
        ),
        Part("the policy to deploy", FLOAT * actor * config.constraint.keep, ("policy.hidden",), kept=True),
        Part(
            "the evaluation", config.run.evaluation_episodes * evaluated, ("run.evaluation_episodes",), phase=EVALUATION
        ),
    ]
    return found + source.parts(config) + solver.parts(config)


def _widest(hidden: Sequence[int]) -> int:
    return max(hidden, default=1)


def _machine(grid: parallel.Grid) -> Machine | None:
    """The memory of the devices, if its size is known."""
    pieces, shares = grid.mesh.devices.shape
    device = next(device for device in grid.mesh.devices.flat if device.process_index == jax.process_index())
    if device.platform == "cpu":
        # All devices of a process are cores of one machine.
        free, machines = _free_memory(), min(pieces, jax.process_count())
        return Machine("this machine", free, pieces=machines, copies=shares, checkpoints=True) if free else None
    stated = device.memory_stats() or {}
    if "bytes_limit" not in stated:
        return None
    free = stated["bytes_limit"] - stated.get("bytes_in_use", 0)
    return Machine("each device", free, pieces=pieces, copies=1, checkpoints=False)


def _free_memory() -> int:
    """Bytes that this process can still allocate; 0 if unknown."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), 0)
    # A container may have less.
    group = pathlib.Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def _excess(config: Config, lanes: int, path: str) -> float:
    """How far a setting is above its default, as a ratio."""
    if path in ("seeds", "sweep"):
        return config.seeds if path == "seeds" else lanes / config.seeds
    return _number(path, _get(config, path)) / _number(path, _get(Config(), path))


def _largest(fits: Callable[[int], bool], below: int) -> int:
    """The largest number below `below` that fits, assuming that all smaller ones fit too; 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _get(config: Config, path: str) -> Any:
    group, name = path.split(".")
    return getattr(getattr(config, group), name)


def _with(config: Config, path: str, number: int) -> Config:
    group, name = path.split(".")
    value = _from_number(path, _get(config, path), number)
    return dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **{name: value})})


def _number(path: str, value: Any) -> int:
    """An integer with which the memory increases: the largest entry of a tuple, the inverse of query.fraction."""
    if path == _FRACTION:
        return math.ceil(1 / value)
    return max(value, default=1) if isinstance(value, tuple) else value


def _from_number(path: str, value: Any, number: int) -> Any:
    """The setting for another such number; a tuple is scaled as a whole."""
    if path == _FRACTION:
        return math.ceil(1e6 / number) / 1e6
    return tuple(max(1, width * number // max(value)) for width in value) if isinstance(value, tuple) else number


def _gigabytes(size: int) -> str:
    if size < 1e8:
        return f"{size / 1e6:.3g} MB"
    return f"{size / 1e9:.3g} GB" if size < 1e15 else f"{size / 1e9:.1e} GB"
