"""Process-wide set-up of the tests: two CPU devices, so that cutting lanes over devices is really exercised."""

import os
import pathlib
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(tempfile.gettempdir()) / "traces_jax_tests_xla"))

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
