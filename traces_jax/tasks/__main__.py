"""Tasks: python -m traces_jax.tasks

Lists the tasks: sizes of observation and action, and the steps of an episode.
"""

import argparse

from traces_jax import tasks


def table() -> list[str]:
    """A line for each task that is not a probe for tests."""
    lines = [f"{'task':<32}{'observation':>11}{'action':>8}{'steps':>7}"]
    for name in tasks.NAMES:
        if not name.startswith("Probe"):
            task = tasks.make(name)
            lines.append(f"{name:<32}{task.observation_size:>11}{task.action_size:>8}{task.horizon:>7}")
    return lines


def main() -> None:
    """The command line."""
    argparse.ArgumentParser(
        prog="python -m traces_jax.tasks",
        description="Lists the tasks. Your own is named module:Class, see docs/own_task.md.",
        epilog="Example: python -m traces_jax.tasks",
    ).parse_args()
    print("\n".join(table()))


if __name__ == "__main__":
    main()
