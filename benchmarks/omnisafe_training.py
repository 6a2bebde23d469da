"""Trains OmniSafe's PPO-Lagrangian for a few epochs and prints what they cost, as JSON. `peers` starts it.

Runs in OmniSafe's own environment: Python 3.10, nothing of this project.
"""

import argparse
import csv
import json
import multiprocessing
import os
import pathlib
import tempfile
import time


def cpu_seconds() -> float:
    """Of this process, its threads, and the processes that step environments."""
    ticks = 0
    for child in multiprocessing.active_children():
        # The second field, a name, may contain spaces.
        fields = pathlib.Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True)
    for name in ("environments", "threads", "steps", "passes", "epochs"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    import omnisafe  # takes seconds

    with tempfile.TemporaryDirectory() as folder:
        agent = omnisafe.Agent(
            "PPOLag",
            given.task,
            custom_cfgs={
                "train_cfgs": {
                    "total_steps": given.steps * given.epochs,
                    "vector_env_nums": given.environments,
                    "torch_threads": given.threads,
                    "device": "cpu",
                },
                "algo_cfgs": {"steps_per_epoch": given.steps, "update_iters": given.passes},
                "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "log_dir": folder},
            },
        )
        begin, cpu = time.perf_counter(), cpu_seconds()
        agent.learn()
        seconds = time.perf_counter() - begin
        # Processes that step environments have ended by now, and are counted as children.
        ended = os.times()
        cpu = time.process_time() + ended.children_user + ended.children_system - cpu
        with next(pathlib.Path(folder).rglob("progress.csv")).open(newline="") as file:
            rows = list(csv.DictReader(file))
    columns = {"rollout": "Time/Rollout", "update": "Time/Update", "passes": "Train/StopIter"}
    found = {name: [float(row[column]) for row in rows] for name, column in columns.items()}
    print(json.dumps({"seconds": seconds, "cpu": cpu, "steps": given.steps * given.epochs, **found}))


if __name__ == "__main__":
    main()
