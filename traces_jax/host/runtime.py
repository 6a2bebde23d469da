"""Process-wide setup, in one function that only commands call. Importing the package changes nothing."""

import contextlib
import logging
import os
import pathlib
import platform
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import metadata

import jax
import mujoco
from absl import logging as absl_logging

_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "brax",
    "mujoco",
    "mujoco-mjx",
    "chex",
    "orbax-checkpoint",
    "distrax",
    "numpy",
)


def setup() -> None:
    """Configures JAX. Should run before the first array is created.

    On a CPU every core becomes a device, so that lanes run in parallel; devices that are in use already stay as they
    are. Matrix products use full precision on
    accelerators. Compiled programs are cached between runs. Library messages that duplicate exceptions are silenced.
    """
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(_cache_root() / "xla"))
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_default_matmul_precision", "highest")
    with contextlib.suppress(RuntimeError):  # A program that has used JAX's devices before.
        jax.config.update("jax_num_cpu_devices", core_count())
    # MuJoCo would log diverging simulations to a file in the working directory; we count them in the metrics.
    mujoco.set_mju_user_warning(lambda text: None)
    sys.unraisablehook = _say_ignored
    # Only checkpoints use asyncio. After the first failed write is reported, messages about other failed or unstarted
    # writes are redundant.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", r"coroutine .* was never awaited", RuntimeWarning)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the log messages of libraries. We print what matters to a user."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.FATAL)
    try:
        yield
    finally:
        absl_logging.set_verbosity(before)


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say_ignored(found: "sys.UnraisableHookArgs") -> None:
    """Handles unraisable exceptions as Python does, with two exceptions.

    When one write of a checkpoint fails, its event loop closes and the failure is reported. Writes that end later find
    the loop closed, and tensorstore's threads would print hundreds of tracebacks: these are dropped. Ctrl-C during
    JAX's part of a garbage collection would be lost: it is raised again.
    """
    if isinstance(found.exc_value, KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    elif not (isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(found)


def describe() -> dict[str, object]:
    """Versions and devices, for run.json."""
    return {
        "command": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "devices": len(jax.devices()),
        "processes": jax.process_count(),
        "backend": jax.default_backend(),
        "versions": {name: metadata.version(name) for name in ("traces_jax", *_PACKAGES)},
    }


def _commit() -> str | None:
    """The commit of this program, marked if files differ from it; None if it is not in a repository of its own."""
    root = pathlib.Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _cache_root() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "traces_jax"
