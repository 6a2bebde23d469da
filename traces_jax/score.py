"""Score: python -m traces_jax.score --estimator runs/ant --inputs in.npz --out out.npz

Applies an estimator to trajectories. The estimator is from a run folder (--seed selects one of its seeds), a folder of
`traces_jax.pretrain`, or a state dict saved by PyTorch (.pt), as published by the authors of TraCeS.

  in.npz   inputs [B, T, F]: for each step the raw observation concatenated with the action
  out.npz  hidden [B, T, H], the hidden state after each step; mu, sigma [B, T] of the log-normal credit of each step;
           mean, variance [B, T] of that credit, clamped (at 7, or as in the run); log_probability [B, T], the
           cumulative sum of -mean: log of the probability, by mean credits, that the trajectory is acceptable up to
           and including that step
"""

import dataclasses
import pathlib
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from traces_jax.estimator import credit, network
from traces_jax.host import cli, errors, files, runtime
from traces_jax.host.data import arrays, import_torch, prior

_ESTIMATOR = flags.DEFINE_string(
    "estimator", None, "Folder of a run or of pretrain, or state dict saved by PyTorch (.pt)."
)
_INPUTS = flags.DEFINE_string("inputs", None, "Input file (.npz).")
# Other commands have these flags too, and tests load them into one process.
_SEED = flags.DEFINE_integer("seed", None, "Seed of the run. Default: its first.", allow_override=True)
_OUT = flags.DEFINE_string("out", None, "Output file (.npz).", allow_override=True)

CLAMP = -7.0


@dataclasses.dataclass(frozen=True)
class Judge:
    """An estimator and the preprocessing of its raw inputs [..., F]."""

    estimator: network.Estimator
    clamp: jax.Array | float
    prepare: Callable[[jax.Array], jax.Array]


@jax.jit
def score(estimator: network.Estimator, prepared: jax.Array, clamp: jax.Array | float) -> dict[str, jax.Array]:
    """prepared: [B, T, F], preprocessed inputs. Returns the arrays of the output file."""
    hidden, mu, sigma = network.apply(estimator, jnp.swapaxes(prepared, 0, 1))
    mean = credit.clamped_mean(mu, sigma, clamp=clamp)
    rows = {
        "hidden": hidden,
        "mu": mu,
        "sigma": sigma,
        "mean": mean,
        "variance": credit.clamped_variance(mu, sigma, clamp=clamp),
        "log_probability": credit.prefix_log_probability(-mean),
    }
    return {name: jnp.swapaxes(values, 0, 1) for name, values in rows.items()}


def load(path: pathlib.Path, seed: int | None) -> Judge:
    """Reads an estimator from a folder or from a PyTorch file."""
    if path.is_dir():
        saved = prior.read(path, seed, lambda text: print(text, file=sys.stderr))
        return Judge(saved.prior.fitted.params, saved.config.estimator.clamp, saved.prepare)
    if seed is not None:
        raise errors.UserError(f"--seed={seed} is for run folders; {path} has one estimator.")
    try:
        return Judge(import_torch.estimator(path), CLAMP, lambda inputs: inputs)
    except import_torch.TorchFileError as error:
        raise errors.UserError(f"--estimator={error}") from None


def load_inputs(path: pathlib.Path, estimator: network.Estimator) -> np.ndarray:
    """Reads and checks an input file: [B, T, F], float32."""
    given = arrays.read(path, "inputs")
    for name in given:
        if name != "inputs":
            print(f"{path}: array {name!r} is not used.", file=sys.stderr)
    features = estimator.layers[0].input_kernel.shape[0]
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
    inputs = load_inputs(inputs_path, judge.estimator)
    result = jax.device_get(score(judge.estimator, judge.prepare(jnp.asarray(inputs)), judge.clamp))
    files.write_arrays(out, **result)
    count, steps, _ = inputs.shape
    acceptable = np.mean(np.exp(result["log_probability"][:, -1]))
    print(f"{out}: {count} trajectories of {steps} steps, mean probability of being acceptable {acceptable:.6g}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
