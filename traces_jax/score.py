"""Score: python -m traces_jax.score --estimator estimator.pt --inputs in.npz --out out.npz

What an estimator thinks of trajectories. It is a state dict saved by PyTorch, as the authors of TraCeS publish them.

  in.npz   inputs [B, T, F]: for each step the raw observation joined with the action
  out.npz  hidden [B, T, H], the summary after each step; mu, sigma [B, T] of the log-normal credit of each step; mean,
           variance [B, T] of that credit clamped at 7; log_probability [B, T], the cumulative sum of -mean: log of the
           probability, by mean credits, that the trajectory is acceptable up to and with that step
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from traces_jax.estimator import credit, import_torch, network
from traces_jax.host import arrays, cli, errors, runtime

_ESTIMATOR = flags.DEFINE_string("estimator", None, "State dict of an estimator, saved by PyTorch (.pt).")
_INPUTS = flags.DEFINE_string("inputs", None, "Input file (.npz).")
# Other commands have this flag too, and tests load them into one process.
_OUT = flags.DEFINE_string("out", None, "Output file (.npz).", allow_override=True)

CLAMP = -7.0


@jax.jit
def score(estimator: network.Estimator, inputs: jax.Array) -> dict[str, jax.Array]:
    """inputs: [B, T, F]. Returns the arrays of the output file."""
    hidden, mu, sigma = network.apply(estimator, jnp.swapaxes(inputs, 0, 1))
    mean = credit.clamped_mean(mu, sigma, clamp=CLAMP)
    rows = {
        "hidden": hidden,
        "mu": mu,
        "sigma": sigma,
        "mean": mean,
        "variance": credit.clamped_variance(mu, sigma, clamp=CLAMP),
        "log_probability": credit.prefix_log_probability(-mean),
    }
    return {name: jnp.swapaxes(values, 0, 1) for name, values in rows.items()}


def load_estimator(path: pathlib.Path) -> network.Estimator:
    """Reads an estimator."""
    if path.is_dir():
        raise errors.UserError(f"--estimator={path} is a folder; give a state dict saved by PyTorch (.pt).")
    try:
        return import_torch.estimator(path)
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
    estimator_path = pathlib.Path(arrays.given(_ESTIMATOR, "estimator.pt"))
    inputs_path = pathlib.Path(arrays.given(_INPUTS, "in.npz"))
    out = pathlib.Path(arrays.given(_OUT, "out.npz"))
    arrays.check_out(out)
    runtime.setup()
    estimator = load_estimator(estimator_path)
    inputs = load_inputs(inputs_path, estimator)
    result = jax.device_get(score(estimator, inputs))
    arrays.save(out, result)
    count, steps, _ = inputs.shape
    acceptable = np.mean(np.exp(result["log_probability"][:, -1]))
    print(f"{out}: {count} trajectories of {steps} steps, mean probability of being acceptable {acceptable:.6g}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
