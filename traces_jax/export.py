"""Export: python -m traces_jax.export --run runs/ant --out ant/

Writes the policy of a run as files that need neither this package nor a run folder: policy.onnx for ONNX runtimes,
policy.jax for JAX (jax.export.deserialize), and a card that says what it is: task, method, labels used, evaluation,
version. Normalization of observations and the memory of the episode are inside. docs/export.md shows how to play them.
"""

import pathlib
import sys

from absl import flags

from traces_jax.host import cli, errors, files, runtime
from traces_jax.host.data import arrays

# Other commands have these flags too, and tests load them into one process.
_RUN = flags.DEFINE_string("run", None, "Run folder.", allow_override=True)
_OUT = flags.DEFINE_string("out", None, "Folder for the files.", allow_override=True)
_SEED = flags.DEFINE_integer("seed", None, "Seed of the run. Default: its first.", allow_override=True)
_STEP = flags.DEFINE_string(
    "step", "deployed", "deployed, latest, best or finished iterations, as in evaluate.", allow_override=True
)
_FORMATS = flags.DEFINE_list("formats", ["onnx", "jax"], "Which files: onnx, jax or both.")
_OVERWRITE = flags.DEFINE_boolean("overwrite", False, "Replace earlier files.", allow_override=True)


def main() -> int:
    """The command line."""
    if _RUN.value is None:
        raise errors.UserError("--run is missing; give a run folder such as runs/ant.")
    run, out = pathlib.Path(_RUN.value), pathlib.Path(arrays.given(_OUT, "ant/"))

    from traces_jax.host.deploy import export, saved

    for name in _FORMATS.value:
        if name not in export.FORMATS:
            raise errors.UserError(f"--formats={name} is not right: choose from {', '.join(export.FORMATS)}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not (out / "card.json").is_file():
            raise errors.UserError(f"--out={out} exists and is not an exported policy; choose another folder.")
        if not _OVERWRITE.value:
            raise arrays.exists(out)
    files.check_can_write(out)
    runtime.setup()
    found = saved.read(run, _STEP.value, _SEED.value, lambda text: print(text, file=sys.stderr))
    if found.satisfied is False:
        print(f"note: {found.lane.name} never satisfied its constraint; its policy is the one that came nearest")
    export.export(found, run, out, _FORMATS.value, print)
    print(f"saved: {out}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
