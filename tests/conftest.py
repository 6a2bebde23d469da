"""Process-wide set-up of the tests: two CPU devices, so that cutting lanes over devices is really exercised."""

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


@pytest.fixture(scope="module")
def quick_compile():
    """Compiles with few optimisations: for tests that build many programs and run each for a moment."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
