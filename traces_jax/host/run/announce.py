"""What a run says at its start: what it runs on, how large its networks are, how many labels it may ask for."""

import math
import pathlib
import re
from importlib import metadata
from typing import Any

import jax

from traces_jax.core import optimize
from traces_jax.core.learner import LearnerState
from traces_jax.host.run.build import Built
from traces_jax.sources import candidates


def lines(built: Built) -> list[str]:
    """One line for each: device, engine, lanes, networks, labels."""
    config, lanes, source = built.config, built.lanes, built.program.learner.source
    grid = built.program.grid.mesh.devices
    seeds = f"seed {config.seed}" if config.seeds == 1 else f"seeds {config.seed} to {config.seed + config.seeds - 1}"
    settings = len(lanes) // config.seeds
    sweep = f", each with {settings} settings" if settings > 1 else ""
    sizes = _sizes(built)
    labels = candidates.most_labelled(config, built.task) if source.learns else 0
    episodes = config.iterations * config.environment.count * config.environment.steps // built.task.horizon
    asked = f"up to {labels:,} trajectories of each lane, of about {episodes:,}" if labels else "none"
    return [
        f"device    {_device(grid.flat[0], grid.size)}",
        f"engine    {_engine(built.task.backend)}",
        f"task      {config.task}, {config.steps:,} steps in {config.iterations:,} iterations",
        f"lanes     {len(lanes)}: {seeds}{sweep}",
        f"networks  parameters of each lane: {', '.join(f'{name} {size:,}' for name, size in sizes.items() if size)}",
        f"labels    {asked} (method.source={config.method.source}, method.solver={config.method.solver})",
    ]


def _device(device: jax.Device, count: int) -> str:
    if device.platform != "cpu":
        return f"{count} of {jax.device_count()} x {device.device_kind}"
    return f"{count} of {jax.device_count()} CPU cores ({_processor()})"


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else "unknown"


def _engine(backend: str) -> str:
    known = {"native": ("MuJoCo in C", "mujoco"), "mjx": ("MuJoCo in JAX", "mujoco-mjx")}
    if backend not in known:
        return "none"
    name, package = known[backend]
    return f"{backend}: {name}, {metadata.version(package)}"


def _sizes(built: Built) -> dict[str, int]:
    """Parameters of one lane."""
    state: LearnerState = built.program.abstract()
    learned = built.program.learner.source.learned(state.source)
    trained = [
        part
        for part in jax.tree.leaves(learned, is_leaf=lambda part: isinstance(part, optimize.Trained))
        if isinstance(part, optimize.Trained)
    ]
    agent = state.agent
    return {
        "actor": _count(agent.actor.params),
        "critics": _count((agent.reward_critic.params, agent.cost_critic.params)),
        "estimator": _count([part.params for part in trained]),
    }


def _count(tree: Any) -> int:
    """Numbers in a tree [S, ...], for one lane."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(tree))
