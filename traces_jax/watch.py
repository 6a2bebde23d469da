"""Watch: python -m traces_jax.watch --run runs/ant

Shows a running or finished run: curves of return, true cost, acceptance, multiplier and labels (mean over lanes, with a
band of one standard deviation), and the latest values of each lane. Updates every few seconds until the run is
complete. Ctrl-C ends `watch`, not the run. Needs no server.
"""

import pathlib
import time

import rich.console
import rich.live
from absl import flags

from traces_jax.host import cli, errors
from traces_jax.host.run import folder as folder_lib
from traces_jax.host.show import view

# Other commands have this flag too, and tests load them into one process.
_RUN = flags.DEFINE_string("run", None, "Run folder.", allow_override=True)
_ONCE = flags.DEFINE_boolean("once", False, "Print the current state once and exit, as without a terminal.")
_SECONDS = flags.DEFINE_float("seconds", 3.0, "Seconds between updates.")


def main() -> int:
    """The command line."""
    if _RUN.value is None:
        raise errors.UserError("--run is missing; give a run folder such as runs/ant.")
    if not _SECONDS.value > 0:
        raise errors.UserError(f"--seconds={_SECONDS.value} is not right: it must be above 0.")
    folder = pathlib.Path(_RUN.value)
    seen = view.View(folder, folder_lib.load_config(folder))
    console = rich.console.Console()
    complete = seen.look()
    if _ONCE.value or not console.is_terminal:
        console.print(seen.frame(console.width))
        return cli.OK
    with rich.live.Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(seen.frame(console.width, console.height - 1), refresh=True)
                if complete:
                    break
                time.sleep(_SECONDS.value)
                complete = seen.look()
        except KeyboardInterrupt:
            pass
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
