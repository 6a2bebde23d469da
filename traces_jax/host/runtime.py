"""Process-wide set-up, in one function that only command lines call. Importing the package changes nothing."""

import logging
import os
import pathlib
import platform
import signal
import sys
import warnings
from importlib import metadata

import jax
import mujoco

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
    """Prepares JAX. Must run before the first array is made.

    On a CPU every core becomes a device, so that lanes run side by side; matrix products keep full precision on
    accelerators that would round them; compiled programs are kept between runs. Libraries do not print what they also
    raise.
    """
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(_cache_root() / "xla"))
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_num_cpu_devices", core_count())
    # MuJoCo would log diverging simulations to a file in the working folder; we count them in the metrics.
    mujoco.set_mju_user_warning(lambda text: None)
    sys.unraisablehook = _say_ignored
    # Only checkpoints are written that way. Once the first write that fails has been told, nobody needs to hear of the
    # others, nor of those that were never begun.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", r"coroutine .* was never awaited", RuntimeWarning)


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say_ignored(found: "sys.UnraisableHookArgs") -> None:
    """What Python does with an error that nobody can catch, but for two kinds.

    When one write of a checkpoint fails, the event loop that waits for all of them ends and the failure is told. Writes
    that end later find it closed, and tensorstore's threads would print a traceback for each of hundreds. Ctrl-C in the
    middle of JAX's part of a garbage collection would be lost; here it counts again.
    """
    if isinstance(found.exc_value, KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    elif not (isinstance(found.exc_value, RuntimeError) and str(found.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(found)


def describe() -> dict[str, object]:
    """What a run was made with: goes into its folder."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "devices": len(jax.devices()),
        "backend": jax.default_backend(),
        "versions": {name: metadata.version(name) for name in ("traces_jax", *_PACKAGES)},
    }


def _cache_root() -> pathlib.Path:
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "traces_jax"
