"""Process-wide set-up of the tests: two CPU devices, so that cutting lanes over devices is really exercised."""

import gc
import os
import pathlib
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(tempfile.gettempdir()) / "traces_jax_tests_xla"))

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


# Most tests build a program and run it for a moment: compiling is nearly all of their time.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def optimized():
    """For tests that train for a while: compiles as users do."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Programs of a finished module are dropped. All together they would need many gigabytes."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def environment():
    """A child process sees the same cache and devices."""
    return {**os.environ, "JAX_PLATFORMS": "cpu"}
