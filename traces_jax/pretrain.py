"""Pretrain: python -m traces_jax.pretrain --config experiments/ant.py --data FILE.hdf5 --out estimators/ant

Fits the estimator to recorded trajectories, whose costs are used for labels only, until its accuracy on a validation
set reaches the target. Then prints its accuracy on a held-out test set. FILE.hdf5 has DSRL's layout: flat arrays
observations [N, O], actions [N, A], costs [N], terminals [N], timeouts [N]; an episode ends where one of the last two
is true. It may be gzip-compressed, and larger than memory.

A run starts from the result with --config.estimator.init=estimators/ant. Pretraining itself may start from another
estimator in the same way. With --config.pretrain.steps=0 it only prints the accuracy of that one, and --out is not
needed.
"""

import pathlib

from absl import flags
from ml_collections import config_flags

from traces_jax.host import cli, experiment, runtime
from traces_jax.host.data import arrays

# Other commands have these flags too, and tests load them into one process.
_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Experiment: a name such as ant, or a file.", allow_override=True
)
_DATA = flags.DEFINE_string("data", None, "Recorded trajectories (.hdf5).")
_OUT = flags.DEFINE_string("out", None, "Folder for the estimator.", allow_override=True)
_OVERWRITE = flags.DEFINE_boolean("overwrite", False, "Replace an existing estimator.", allow_override=True)


def main() -> int:
    """The command line."""
    config = experiment.read(_CONFIG)
    data = pathlib.Path(arrays.given(_DATA, "ant.hdf5"))
    wanted = _OUT.value or config.pretrain.steps > 0
    out = pathlib.Path(arrays.given(_OUT, "estimators/ant")) if wanted else None
    runtime.setup()

    from traces_jax.host.data import pretrain  # after set-up: nothing may touch JAX's devices before it

    pretrain.pretrain(config, data, out, overwrite=_OVERWRITE.value)
    if out is not None:
        print(f"estimator: {out}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
