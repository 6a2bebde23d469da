"""The clock inside compiled programs, and the times of stages it makes known."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_config

from traces_jax import tasks
from traces_jax.core import learner
from traces_jax.host.run import build, clock

SMALL = {
    "task": "ProbeBudget",
    "steps": 160,
    "environment": {"count": 2, "steps": 20},
    "ppo": {"minibatch": 20, "passes": 2},
    "policy": {"hidden": (8,)},
    "critic": {"hidden": (8,)},
}


@pytest.fixture(scope="module")
def read():
    found = clock.find("cpu")
    assert found is not None
    return found


def now() -> int:
    """Microseconds, cut to 32 bits."""
    return (time.monotonic_ns() // 1000) % 2**32


def passed(begin: int, end: int) -> int:
    return (end - begin) % 2**32


@pytest.mark.parametrize("value", [np.float32(1.5), np.int32(-7), np.arange(12, dtype=np.float32).reshape(3, 4)])
def test_it_gives_back_what_it_was_given_and_the_time(read, value):
    program = jax.jit(read).lower(value).compile()
    begin = now()
    same, at = program(value)
    end = now()
    np.testing.assert_array_equal(same, value)
    assert at.dtype == jnp.uint32 and at.shape == ()
    assert passed(begin, int(at)) <= passed(begin, end) < 60e6


def test_lanes_share_a_reading(read):
    values = jnp.arange(6.0).reshape(3, 2)
    same, at = jax.jit(jax.vmap(read))(values)
    np.testing.assert_array_equal(same, values)
    assert at.shape == (3,) and len(set(np.asarray(at).tolist())) == 1


def test_what_uses_the_value_comes_after(read):
    """A long sum between two readings lies between them, whichever is asked for first."""

    @jax.jit
    def program(value):
        first, begin = read(value)
        total = jax.lax.fori_loop(0, 200_000, lambda i, x: jnp.sin(x) + i, first)
        _, end = read(total)
        return end, begin, total

    program(1.0)
    end, begin, _ = program(1.0)
    assert 500 < passed(int(begin), int(end)) < 60e6


def test_there_is_none_on_accelerators():
    assert clock.find("gpu") is None and clock.find("tpu") is None


@pytest.mark.parametrize("source", ["oracle", "traces"])
def test_stages_of_an_iteration(source):
    """Two seeds on two devices: each has its own times, and together they take no longer than the whole."""
    built = build.build(make_config(**SMALL, seeds=2, method={"source": source}))
    program = built.program
    state, _ = program.chunk(program.init(), 0, 1)
    jax.block_until_ready(state)
    begin = time.perf_counter()
    _, rows = jax.device_get(program.chunk(state, 1, 1))
    whole = time.perf_counter() - begin
    stages = {name: values for name, values in rows.items() if name.startswith("stage/")}
    assert set(stages) == {"stage/collect", "stage/judge", "stage/update"}
    assert all(values.shape == (2, 1) and np.all(values >= 0) for values in stages.values())
    total = sum(stages.values())
    assert np.all(total > 0) and np.all(total <= whole)


def test_without_a_clock_there_are_no_times():
    config = make_config(**SMALL)
    core = learner.make(config, tasks.make("ProbeBudget"), environments=learner.Spread(), one_lane_at_a_time=True)
    row = jax.eval_shape(core.iteration, config, core.init(config, jax.random.key(0)), jnp.int32(0))[1]
    assert not [name for name in row if name.startswith("stage/")]
