"""Compares our tasks with the original engines: policies of our runs, and hand-driven balls and cars, played in both.

  python -m benchmarks.originals transfer --run runs/ball_run runs/half_cheetah

plays the mean action of every seed here and in the original engine, and prints both results as a Markdown table. The
original engines (safety-gymnasium 1.0.0 and bullet-safety-gym 1.4.0) need Python 3.10 and old packages, so they have a
virtual environment of their own: --originals is its folder, made at the first call. The policy gets there as a file of
arrays, so nothing but NumPy is needed to play it.

  python -m benchmarks.originals play --package traces_jax.gym --task traces_jax/SafetyCarRun-v0 --out ours.npz
  .originals/bin/python -m benchmarks.originals play --package bullet_safety_gym --task SafetyCarRun-v0 --out theirs.npz
  python -m traces_jax.score --estimator FILE.pt --inputs ours.npz --out ours.scores.npz
  python -m benchmarks.originals compare --played ours.npz --scores ours.scores.npz

The second kind has a driver that reacts to what it observes, with two speeds in each episode, some within the limit and
some far beyond it.
"""

import argparse
import importlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import foreign_python, plain_policy

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("safety-gymnasium==1.0.0", "bullet-safety-gym==1.4.0")
PYTHON = "python3.10"
EPISODES = 80
# Deviation of the noise on the driver's actions.
NOISE = 0.15
# Summed cost up to which a trajectory is acceptable, and steps between its prefixes.
LIMIT, INTERVAL = 25, 5


def drive_ball(observation: np.ndarray, speed: float) -> np.ndarray:
    """Forces [2] that bring the ball to a speed along its lane, m/s, and keep it there."""
    _, y, vx, vy = observation[:4] / np.array([0.1, 0.1, 0.2, 0.2])
    return np.array([0.5 * (speed - vx), -0.5 * vy - 0.3 * y])


def drive_car(observation: np.ndarray, speed: float) -> np.ndarray:
    """Throttle and steer [2] for the same of the car, which runs in reverse and straight on; 3.6 m/s is its most."""
    return np.array([-(speed / 3.6 + 0.5 * (speed - observation[2])), 0.0])


# A driver, the fastest speed it is asked for, and the steps of an episode.
DRIVERS = {"SafetyBallRun-v0": (drive_ball, 6.0, 100), "SafetyCarRun-v0": (drive_car, 3.5, 200)}


def play(package: str, task: str, out: str) -> None:
    """Writes `inputs` [B, T, F] for traces_jax.score and `cost` [B, T]."""
    import gymnasium  # not needed to compare

    importlib.import_module(package)
    environment: Any = gymnasium.make(task)
    drive, fastest, steps = DRIVERS[task.rpartition("/")[2]]
    random = np.random.default_rng(0)
    inputs, costs = [], []
    for episode in range(EPISODES):
        # One package draws its starts from NumPy's global numbers, the other from the seed.
        np.random.seed(episode)
        observation, _ = environment.reset(seed=episode)
        first, second = random.uniform(0.5, fastest, 2)
        change = random.integers(steps // 10, steps)
        rows, cost = [], []
        for number in range(steps):
            action = drive(np.asarray(observation), first if number < change else second)
            action = (action + NOISE * random.standard_normal(2)).astype(np.float32)
            rows.append(np.concatenate([observation, action]))
            observation, _, _, _, info = environment.step(action)
            cost.append(info["cost"])
        inputs.append(rows)
        costs.append(cost)
    np.savez(out, inputs=np.asarray(inputs, np.float32), cost=np.asarray(costs, np.float32))
    totals = np.sum(costs, axis=1)
    print(f"{out}: {EPISODES} episodes, cost {totals.mean():.1f}, acceptable {np.mean(totals <= LIMIT):.1%}")


def compare(played: str, scores: str) -> None:
    """Prints how an estimator judges what was played."""
    total = np.cumsum(np.load(played)["cost"], axis=1)
    probability = np.exp(np.load(scores)["log_probability"])
    prefixes = slice(INTERVAL - 1, None, INTERVAL)
    right = (total <= LIMIT) == (probability >= 0.5)
    print(
        f"{played}: accuracy on prefixes {right[:, prefixes].mean():.1%}, "
        f"on full trajectories {right[:, -1].mean():.1%}, "
        f"mean probability {probability[:, -1].mean():.3f}"
    )


def perform(policy_file: str, out: str) -> None:
    """Plays a policy of `transfer` in the original engine. Writes return, cost and accepted, [episodes] each."""
    with np.load(policy_file) as arrays:
        policy = dict(arrays)
    reset, step = _original(str(policy["task"]), terminate=bool(policy["terminate_when_unhealthy"]))
    sums = np.zeros((int(policy["episodes"]), 2))
    accepted = np.zeros(len(sums))
    for episode, total in enumerate(sums):
        observation, memory = reset(episode), plain_policy.begin(policy)
        terminated = truncated = False
        while not (terminated or truncated):
            action, memory = plain_policy.act(policy, memory, observation)
            observation, reward, cost, terminated, truncated = step(action)
            total += reward, cost
        accepted[episode] = total[1] <= policy["limit"] and not (terminated and policy["early_end_violates"])
    found: dict[str, Any] = {"return": sums[:, 0], "cost": sums[:, 1], "accepted": accepted}
    np.savez(out, **found)


def _original(task: str, *, terminate: bool) -> tuple[Callable[[int], np.ndarray], Callable[[np.ndarray], tuple]]:
    """Reset (seed -> observation) and step (action -> observation, reward, cost, terminated, truncated) of a task."""
    if "Run" in task:
        import bullet_safety_gym  # noqa: F401  registers its tasks
        import gymnasium

        bullet: Any = gymnasium.make(task)

        def reset_bullet(seed: int) -> np.ndarray:
            # It draws its starts from NumPy's global numbers.
            np.random.seed(seed)
            return bullet.reset()[0]

        def step_bullet(action: np.ndarray) -> tuple:
            observation, reward, terminated, truncated, info = bullet.step(action)
            return observation, reward, info["cost"], terminated, truncated

        return reset_bullet, step_bullet
    import safety_gymnasium

    can_fall = any(robot in task for robot in ("AntVelocity", "Hopper", "Walker2d"))
    environment: Any = safety_gymnasium.make(task, **({"terminate_when_unhealthy": terminate} if can_fall else {}))
    return lambda seed: environment.reset(seed=seed)[0], lambda action: environment.step(action)[:5]


def transfer(runs: Sequence[str], originals: str, episodes: int, step: str) -> None:
    """Prints a Markdown row for each run: its policies here and in the original engine."""
    from absl import logging

    from traces_jax.host import runtime  # here only, not in the originals' environment

    logging.set_verbosity(logging.FATAL)
    runtime.setup()
    python = foreign_python.python_of(pathlib.Path(originals), "originals", PYTHON, PACKAGES)
    print("| task | seeds | steps | here: return | cost | accepted | original: return | cost | accepted |")
    print("|---|---|---|---|---|---|---|---|---|")
    for run in runs:
        task, steps, here, there = _both(pathlib.Path(run), python, episodes, step)
        cells = [_spread(found[name], name) for found in (here, there) for name in ("return", "cost", "accepted")]
        print(f"| {task} | {len(here['cost'])} | {steps:,} | {' | '.join(cells)} |", flush=True)


def _both(folder: pathlib.Path, python: str, episodes: int, step: str) -> tuple[str, int, dict, dict]:
    """Task and steps of a run, and its results here and there: return, cost, accepted, [seeds, episodes] each."""
    import jax

    from traces_jax.host import errors
    from traces_jax.host.report import published
    from traces_jax.host.run import evaluation, restore

    loaded = restore.load(folder, step, None, lambda text: print(text, file=sys.stderr))
    config = loaded.built.config
    if config.task not in published.TASKS or config.sweep:
        raise errors.UserError(
            f"run {folder} is not right: its task is {config.task} and its sweep {config.sweep!r}; a run of one of the "
            "twelve tasks without a sweep would be right."
        )
    here = evaluation.episodes(loaded.built, loaded.policies, episodes)
    state = jax.device_get(loaded.policies)
    there = []
    for number, lane in enumerate(loaded.built.lanes):
        policy = plain_policy.export(lane.config, jax.tree.map(lambda leaf, number=number: leaf[number], state))
        policy |= {
            "task": np.asarray(config.task),
            "terminate_when_unhealthy": np.asarray(config.environment.terminate_when_unhealthy),
            "episodes": np.asarray(episodes),
            "limit": np.asarray(lane.config.constraint.cost_limit),
            "early_end_violates": np.asarray(config.labels.early_end == "violating"),
        }
        there.append(_performed(python, policy))
    joined = {name: np.stack([one[name] for one in there]) for name in there[0]}
    return config.task, int(loaded.iterations.max()) * config.iteration_steps, here, joined


def _performed(python: str, policy: dict[str, Any]) -> dict[str, np.ndarray]:
    """What `perform` writes in the originals' environment."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = pathlib.Path(folder, "policy.npz"), pathlib.Path(folder, "played.npz")
        np.savez(given, **policy)
        command = [python, "-m", "benchmarks.originals", "perform", "--policy", str(given), "--out", str(made)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the original engine failed:\n{done.stderr}")
        with np.load(made) as found:
            return dict(found)


def _spread(values: np.ndarray, name: str) -> str:
    """Mean, and population deviation over seeds if there are several. values: [seeds, episodes]."""
    means = values.mean(axis=1) * (100 if name == "accepted" else 1)
    digits, unit = (0, " %") if name == "accepted" else (1, "")
    spread = f" ({means.std():.{digits}f})" if len(means) > 1 else ""
    return f"{means.mean():.{digits}f}{unit}{spread}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Plays policies and drivers here and in the original engines.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, fields in (
        ("play", ("package", "task", "out")),
        ("compare", ("played", "scores")),
        ("perform", ("policy", "out")),
    ):
        own = commands.add_parser(name)
        for field in fields:
            own.add_argument(f"--{field}", required=True)
    transferring = commands.add_parser("transfer")
    transferring.add_argument("--run", required=True, nargs="+", help="run folders of the twelve tasks")
    transferring.add_argument("--originals", default=".originals", help="virtual environment of the original engines")
    transferring.add_argument("--episodes", type=int, default=50, help="of each seed")
    transferring.add_argument("--step", default="deployed", help="as in traces_jax.evaluate")
    given = vars(parser.parse_args())
    command = given.pop("command")
    if command == "play":
        play(**given)
    elif command == "compare":
        compare(**given)
    elif command == "perform":
        perform(given["policy"], given["out"])
    else:
        from traces_jax.host import errors

        try:
            transfer(given["run"], given["originals"], given["episodes"], given["step"])
        except errors.USER_ERRORS as error:
            parser.exit(2, f"originals: {error}\n")


if __name__ == "__main__":
    main()
