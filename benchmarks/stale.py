"""How stale open episodes are after refits, where their steps are not kept and cannot be read again.

  python -m benchmarks.stale --experiment ball_run --iterations 50

Trains with the preset for accelerators, then goes on for one time limit and records every step. What an estimator would
say of the open episodes if it read them from their first step is compared with the sums that the run has, as
probabilities that they are acceptable so far. Tracked environments differ by the statistics of observations alone.
"""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from traces_jax import config as config_lib
from traces_jax import sources
from traces_jax.config import presets
from traces_jax.core import episodes, spanning
from traces_jax.estimator import credit, network
from traces_jax.host import cli, runtime
from traces_jax.host.run import build as build_lib

_EXPERIMENT = flags.DEFINE_string("experiment", "ball_run", "File in experiments/.")
_ITERATIONS = flags.DEFINE_integer("iterations", 50, "Iterations of training before.")


def main() -> int:
    """The command line."""
    runtime.setup()
    tree = importlib.import_module(f"experiments.{_EXPERIMENT.value}").get_config().to_dict()
    config = config_lib.from_dict(
        presets.apply({**tree, "preset": "accelerator", "run": {"chunk": 1, "checkpoint_every": 1}}, {"preset"})
    )
    built = build_lib.build(config)
    program, learner = built.program, built.program.learner
    state = program.init()
    for index in range(_ITERATIONS.value):
        state, _ = program.chunk(state, index, 1)
    collect = jax.jit(
        program.map_lanes(lambda settings, state, index: learner.collect(settings, state, index)[1], shared=1)
    )
    inputs, ended = [], []
    rollouts = -(-built.task.horizon // config.environment.steps)
    for index in range(_ITERATIONS.value, _ITERATIONS.value + rollouts):
        # The same rollout twice: to look at it, and to learn from it.
        seen = collect(program.settings, state, jnp.int32(index))
        inputs.append(np.concatenate([seen.observation, seen.action], axis=-1)[0])
        ended.append(np.asarray(seen.ended)[0])
        state, _ = program.chunk(state, index, 1)
    source = jax.tree.map(lambda leaf: leaf[0], state.source)
    statistics = jax.tree.map(lambda leaf: leaf[0], state.normalizers.observation)
    every, ends = jnp.concatenate(inputs), jnp.concatenate(ended)
    # Episodes that were open before the first of these rollouts are wrong until they end, which all have done.
    began = jnp.concatenate([jnp.ones_like(ends[:1]), ends[:-1]])
    assert isinstance(learner.source, sources.Labelled)
    prepared = learner.source.prepare(config, statistics, every)
    before, after, _ = network.proceed(source.fitted.params, None, prepared, began)
    mu, sigma = network.decode(source.fitted.params, before, after, prepared)
    exact = episodes.running_sum(credit.clamped_mean(mu, sigma, clamp=config.estimator.clamp), ends)[-1]
    difference = np.abs(np.exp(-np.asarray(exact)) - np.exp(-np.asarray(source.open.sums["expected"])))
    tracked = np.isin(np.arange(config.environment.count), spanning.tracked(config))
    running = np.asarray(source.open.length) > 0
    for name, where in (("tracked", tracked & running), ("others", ~tracked & running)):
        mean, high = np.mean(difference[where]), np.quantile(difference[where], 0.95)
        print(f"{name}: {mean:.4f} on average, 95 % of them below {high:.4f}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
