"""Collect: python -m traces_jax.collect --config experiments/ant.py --out ant.hdf5 --episodes 1000

Generates a file of offline data. Trains policies with the true cost, with several limits and without one, and records
episodes during training, with mixed returns and with summed costs on both sides of constraint.cost_limit. The settings
group `collect` controls this. The layout is DSRL's, a row for each step, episode after episode:

  observations, next_observations [N, O]; actions [N, A] of the policy, before the task clips them; rewards, costs [N];
  qpos [N, nq] after the step: float32. terminals [N], the episode terminated; timeouts [N], the time limit was
  reached: bool. The next observation is the true last one where an episode ended. Attributes of the file: task, config
  and versions (both JSON).
"""

import pathlib

from absl import flags
from ml_collections import config_flags

from traces_jax.host import cli, errors, experiment, runtime
from traces_jax.host.data import arrays

_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment: a name such as ant, or a file.")
_OUT = flags.DEFINE_string("out", None, "Output file (.hdf5).")
_EPISODES = flags.DEFINE_integer("episodes", 1000, "Episodes in the file.")
_OVERWRITE = flags.DEFINE_boolean("overwrite", False, "Replace an existing file.", allow_override=True)


def main() -> int:
    """The command line."""
    config = experiment.read(_CONFIG)
    out = pathlib.Path(arrays.given(_OUT, "data.hdf5"))
    if _EPISODES.value < 1:
        raise errors.UserError(f"--episodes={_EPISODES.value} is not right: it must be at least 1.")
    arrays.check_out(out)
    if out.exists() and not _OVERWRITE.value:
        raise arrays.exists(out)
    runtime.setup()

    from traces_jax.host.data import collect  # after set-up: nothing may touch JAX's devices before it

    collect.collect(config, out, _EPISODES.value)
    print(f"saved: {out}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
