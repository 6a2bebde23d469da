"""Score: python -m traces_jax.score --estimator runs/ant --inputs in.npz --out out.npz

Applies an estimator to trajectories. The estimator is from a run folder (--seed selects one of its seeds), a folder of
`traces_jax.pretrain`, or a state dict saved by PyTorch (.pt), as published by the authors of TraCeS: their estimators,
and those of their cost-threshold baseline.

  in.npz   inputs [B, T, F]: for each step the raw observation concatenated with the action
  out.npz  mean [B, T], the expected cost of each step; log_probability [B, T], the log of the probability that the
           trajectory is acceptable up to and including that step, and further arrays of each kind of estimator:
           TraCeS: hidden [B, T, H], the hidden state after each step; mu, sigma [B, T] of the log-normal credit of each
           step; variance [B, T] of that credit, which like its mean is clamped (at 7, or as in the run)
           RLSF: bad [B, T], the probability that the state is bad
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from traces_jax import config as config_lib
from traces_jax import sources
from traces_jax.config import Config
from traces_jax.host import cli, errors, files, runtime
from traces_jax.host.data import arrays, import_torch, prior

_ESTIMATOR = flags.DEFINE_string(
    "estimator", None, "Folder of a run or of pretrain, or state dict saved by PyTorch (.pt)."
)
_INPUTS = flags.DEFINE_string("inputs", None, "Input file (.npz).")
# Other commands have these flags too, and tests load them into one process.
_SEED = flags.DEFINE_integer("seed", None, "Seed of the run. Default: its first.", allow_override=True)
_OUT = flags.DEFINE_string("out", None, "Output file (.npz).", allow_override=True)


@dataclasses.dataclass(frozen=True)
class Judge:
    """An estimator.

    Attributes:
      source: what it is, with its config.
      params: its parameters.
      features: numbers it reads of a step.
      prepare: preprocesses its raw inputs [..., F].
    """

    source: sources.Labelled
    config: Config
    params: Any
    features: int
    prepare: Callable[[jax.Array], jax.Array]

    def scores(self, inputs: jax.Array) -> dict[str, jax.Array]:
        """inputs: [B, T, F] raw. Returns the arrays of the output file."""
        found = self.source.scores(self.config, self.params, jnp.swapaxes(self.prepare(inputs), 0, 1))
        return {name: jnp.swapaxes(values, 0, 1) for name, values in found.items()}


def load(path: pathlib.Path, seed: int | None) -> Judge:
    """Reads an estimator from a folder or from a PyTorch file."""
    if path.is_dir():
        saved = prior.read(path, seed, lambda text: print(text, file=sys.stderr))
        return Judge(saved.source, saved.config, saved.prior.fitted.params, saved.source.features, saved.prepare)
    if seed is not None:
        raise errors.UserError(f"--seed={seed} is for run folders; {path} has one estimator.")
    try:
        found = import_torch.load(path)
    except import_torch.TorchFileError as error:
        raise errors.UserError(f"--estimator={error}") from None
    config = Config()
    for name, value in sources.published(found.params).items():
        config = config_lib.with_value(config, name, value)
    source = sources.without_task(config)
    assert isinstance(source, sources.Labelled), "only learned costs are saved"
    return Judge(source, config, found.params, found.features, lambda inputs: inputs)


def load_inputs(path: pathlib.Path, features: int) -> np.ndarray:
    """Reads and checks an input file: [B, T, features], float32."""
    given = arrays.read(path, "inputs")
    for name in given:
        if name != "inputs":
            print(f"{path}: array {name!r} is not used.", file=sys.stderr)
    if "inputs" not in given:
        raise errors.UserError(f"{path} has no array 'inputs'; it must hold inputs [B, T, {features}].")
    inputs = arrays.numbers(path, "inputs", given["inputs"])
    if inputs.ndim != 3 or inputs.size == 0 or inputs.shape[2] != features:
        raise arrays.wrong_shape(path, "inputs", inputs, f"[B, T, {features}] with B and T of at least 1")
    return inputs


def main() -> int:
    """The command line."""
    estimator_path = pathlib.Path(arrays.given(_ESTIMATOR, "runs/ant"))
    inputs_path = pathlib.Path(arrays.given(_INPUTS, "in.npz"))
    out = pathlib.Path(arrays.given(_OUT, "out.npz"))
    arrays.check_out(out)
    runtime.setup()
    judge = load(estimator_path, _SEED.value)
    inputs = load_inputs(inputs_path, judge.features)
    result = jax.device_get(jax.jit(judge.scores)(jnp.asarray(inputs)))
    files.write_arrays(out, **result)
    count, steps, _ = inputs.shape
    acceptable = np.mean(np.exp(result["log_probability"][:, -1]))
    print(f"{out}: {count} trajectories of {steps} steps, mean probability of being acceptable {acceptable:.6g}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
