"""The program for accelerators, lowered without one: nothing in it runs on the host, and nothing is float64."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config

from traces_jax import config as config_lib
from traces_jax.core import learner, parallel
from traces_jax.host.run import build

# Libraries of CUDA, and JAX's own marks for devices. Anything else would be called on the host or not exist there.
_KNOWN = re.compile(r"cu[a-z]+_\w+|Sharding|SPMD\w+")
_ACCELERATORS = ("cuda", "tpu")


def faults(lowered: jax.stages.Lowered) -> set[str]:
    """What an accelerator cannot or should not compute: custom calls it does not know, host traffic, float64."""
    text = lowered.as_text()
    calls = set(re.findall(r"custom_call @([\w.]+)", text))
    traffic = set(re.findall(r"stablehlo\.(infeed|outfeed|send|recv)\b", text))
    return {call for call in calls if not _KNOWN.fullmatch(call)} | traffic | set(re.findall(r"\bf64\b", text))


def lowered_chunk(physics: str, **changes) -> jax.stages.Lowered:
    """The chunk of a run with tiny networks, two lanes, each on its own device, as an accelerator would compile it."""
    horizon = build.make_task(config_lib.make(**changes), physics).horizon
    config = make_config(
        seeds=2,
        steps=4 * horizon,
        environment={"count": 2, "steps": horizon},
        ppo={"minibatch": horizon, "passes": 1},
        policy={"hidden": (4,)},
        critic={"hidden": (4,)},
        estimator={"hidden": 2, "depth": 1, "decoder": (4,)},
        refit={"store": 8, "stored_batch": 2, "new_batch": 1, "steps": 1, "passes": 1},
        constraint={"policy": "both"},
        **changes,
    )
    grid = parallel.grid(2, config.environment.count, jax.devices())
    core = learner.make(
        config, build.make_task(config, physics), environments=grid.environments, one_lane_at_a_time=False
    )
    program = parallel.make(config_lib.lanes(config), core, grid)
    return program.traced(2).lower(lowering_platforms=_ACCELERATORS)


@pytest.mark.parametrize(("source", "solver"), [("traces", "ppo_lag"), ("oracle", "trpo_lag")])
def test_training_with_mjx_runs_on_accelerators(source, solver):
    assert not faults(lowered_chunk("mjx", task="SafetyBallRun-v0", method={"source": source, "solver": solver}))


@pytest.mark.parametrize(
    ("source", "solver"),
    [("traces", "trpo_lag"), ("oracle", "ppo_saute")],
)
def test_other_families_of_solvers_run_on_accelerators(source, solver):
    """Physics is the slow part of tracing; solvers and sources do not depend on it."""
    assert not faults(lowered_chunk("native", task="ProbeBudget", method={"source": source, "solver": solver}))


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda x: jax.pure_callback(np.sin, x, x), "callback"),
        (lambda x: jax.debug.print("{}", x) or x, "callback"),
        (lambda x: jax.ffi.ffi_call("of_a_cpu", x)(x), "of_a_cpu"),
        (lambda x: x.astype(jnp.float64) * 2, "f64"),
    ],
    ids=["callback", "print", "foreign", "float64"],
)
def test_faults_are_found(function, fault):
    with jax.enable_x64(True):
        traced = jax.jit(function).trace(jax.ShapeDtypeStruct((3,), jnp.float32))
        # For other platforms JAX itself refuses some of these.
        found = faults(traced.lower(lowering_platforms=("cpu",)))
    assert len(found) == 1 and fault in found.pop()
