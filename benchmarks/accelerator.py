"""The table for a GPU or TPU: make bench-accelerator. To be pasted into an issue.

  python -m benchmarks.accelerator                                          the preset's sizes; small ones on a CPU
  python -m benchmarks.accelerator --experiment ant --seeds 1,4,16 --environments 4096 --steps 32

For each number of seeds: environment steps per second of the physics alone, of rollouts and of whole training; seconds
to compile an iteration; memory as forecast, as XLA states it, and as the device measured it. Written as JSON and
Markdown, with device and versions.
"""

import datetime
import pathlib

import jax
from absl import flags

from benchmarks import accelerator_table
from traces_jax.host import cli, runtime

_EXPERIMENT = flags.DEFINE_string("experiment", "half_cheetah", "File in experiments/.")
_PRESET = flags.DEFINE_string("preset", "accelerator", "Its settings.")
_SEEDS = flags.DEFINE_list("seeds", None, "Numbers of seeds. Default: 1, 4 and 16; on a CPU 1 and 2.")
_ENVIRONMENTS = flags.DEFINE_integer("environments", None, "Of each seed. Default: the preset's; on a CPU 16.")
_STEPS = flags.DEFINE_integer("steps", None, "Of an iteration. Default: the preset's; on a CPU 10.")
_REPEATS = flags.DEFINE_integer("repeats", None, "Measurements of each rate. Default: 10; on a CPU 2.")
_PHYSICS = flags.DEFINE_enum("physics", "auto", ["auto", "native", "mjx"], "Simulator.")
_OUT = flags.DEFINE_string("out", "bench-accelerator", "Folder of the results.")


def main() -> int:
    """The command line."""
    runtime.setup()
    # A program from the cache would say nothing about compiling.
    jax.config.update("jax_enable_compilation_cache", False)
    on_cpu = jax.default_backend() == "cpu"
    seeds = [int(count) for count in _SEEDS.value or (["1", "2"] if on_cpu else ["1", "4", "16"])]
    repeats = _REPEATS.value or (2 if on_cpu else 10)
    stated = {"count": _ENVIRONMENTS.value, "steps": _STEPS.value}
    sizes = ({"count": 16, "steps": 10} if on_cpu else {}) | {name: size for name, size in stated.items() if size}
    rows = []
    for count in seeds:
        given = {"seeds": count, "preset": _PRESET.value, "physics": _PHYSICS.value}
        config = accelerator_table.settings(_EXPERIMENT.value, given, sizes)
        row = accelerator_table.measure(config, repeats)
        columns = accelerator_table.COLUMNS.items()
        print("  ".join(f"{title} {accelerator_table.text(row[name])}" for name, title in columns), flush=True)
        rows.append(row)
    about = {
        **runtime.describe(),
        "task": config.task,
        "environments": config.environment.count,
        "steps": config.environment.steps,
        "date": datetime.date.today().isoformat(),
    }
    accelerator_table.save(pathlib.Path(_OUT.value), rows, about)
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
