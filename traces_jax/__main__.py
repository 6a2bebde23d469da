"""The command `traces-jax`, and `python -m traces_jax`: lists the commands, and runs one of them."""

import importlib.util
import pathlib
import runpy
import sys

import traces_jax

COMMANDS = {
    "train": "train policies; the same command resumes",
    "label": "the page on which people label the clips of a run",
    "watch": "follow a run in the terminal",
    "evaluate": "play saved policies, print return, cost and acceptance",
    "report": "tables and pictures of many runs, as one page",
    "export": "a policy as files for other programs: ONNX and jax.export",
    "collect": "make a file of offline data for a task",
    "pretrain": "fit an estimator to recorded trajectories",
    "score": "apply an estimator to trajectories",
    "replay": "apply recorded actions to a task",
    "study": "many runs from one file, here or on a cluster",
    "tasks": "list the tasks",
}

_USAGE = """\
Safe reinforcement learning from accept/reject labels.

Commands (traces-jax COMMAND, or python -m traces_jax.COMMAND):

{commands}

  traces-jax COMMAND --help        what a command does, with an example
  traces-jax --version             the version
  traces-jax completion bash       a script for tab completion, also for zsh

Example:
  traces-jax train --config ball_run"""


def usage() -> str:
    """The page without a command."""
    return _USAGE.format(commands="\n".join(f"  {name:<12}{what}" for name, what in COMMANDS.items()))


def main() -> int:
    """The command line."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(usage())
        return 0
    name = arguments[0]
    if name == "--version":
        print(f"traces_jax {traces_jax.__version__}")
        return 0
    if name == "completion":
        from traces_jax.host import completion

        return completion.main(arguments[1:])
    if name not in COMMANDS:
        print(f"traces_jax: {name!r} is not a command; choose one of {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    found = importlib.util.find_spec(f"traces_jax.{name}")
    assert found is not None and found.origin is not None
    # Flags and error messages name the program by its file.
    sys.argv = [str(pathlib.Path(found.origin)), *arguments[1:]]
    runpy.run_module(f"traces_jax.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
