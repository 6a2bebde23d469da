"""The ball and the car of the run tasks at hand-picked speeds, in any package that has them: how close is ours?

  python -m benchmarks.originals play --package traces_jax.gym --task traces_jax/SafetyCarRun-v0 --out ours.npz
  python benchmarks/originals.py play --package bullet_safety_gym --task SafetyCarRun-v0 --out original.npz
  python -m traces_jax.score --estimator FILE.pt --inputs ours.npz --out ours.scores.npz
  python -m benchmarks.originals compare --played ours.npz --scores ours.scores.npz

The second line is for an environment with bullet-safety-gym 1.4.0, so playing needs nothing but NumPy and Gymnasium.
The same driver reacts to what it observes in either of them. Each episode has two speeds, one after the other, some
within the limit and some far beyond it.
"""

import argparse
import importlib

import numpy as np

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
    environment = gymnasium.make(task)
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
        f"{played}: prefixes right {right[:, prefixes].mean():.1%}, wholes right {right[:, -1].mean():.1%}, "
        f"mean probability {probability[:, -1].mean():.3f}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Plays and compares the ball and the car.")
    commands = parser.add_subparsers(dest="command", required=True)
    playing, comparing = commands.add_parser("play"), commands.add_parser("compare")
    for name in ("package", "task", "out"):
        playing.add_argument(f"--{name}", required=True)
    for name in ("played", "scores"):
        comparing.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    if given.command == "play":
        play(given.package, given.task, given.out)
    else:
        compare(given.played, given.scores)


if __name__ == "__main__":
    main()
