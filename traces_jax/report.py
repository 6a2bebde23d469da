"""Report: python -m traces_jax.report runs/* --out report/

Tables and plots from run folders, finished or not: index.html, a page with all of them; results.md, results.tex,
results.csv and improvement.csv; pictures/ as SVG and PNG. Seeds of the same task, method and setting are grouped,
across folders. Missing or damaged files are noted.
"""

import pathlib

from absl import flags

from traces_jax.host import cli, errors
from traces_jax.host.data import arrays
from traces_jax.host.report import make

# Other commands have this flag too, and tests load them into one process.
_OUT = flags.DEFINE_string("out", None, "Folder of the report; an older report there is replaced.", allow_override=True)


def main(arguments: list[str]) -> int:
    """The command line. arguments: run folders."""
    if not arguments:
        raise errors.UserError("no run folder is given; name some, as in runs/*.")
    out = pathlib.Path(arrays.given(_OUT, "report/"))
    make.make([pathlib.Path(argument) for argument in arguments], out)
    print(f"report: {out / 'index.html'}")
    return cli.OK


if __name__ == "__main__":
    cli.run(main, takes_arguments=True)
