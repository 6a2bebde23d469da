# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Train a ball from labels
#
# A ball is paid for speed. An episode is acceptable if the ball was too fast, or out of its lane, in at most 25 of 100
# steps. The learner is not told this rule. It asks for labels of a few episodes: acceptable or not.
#
# This takes about a minute on two CPU cores: too short for a good policy, long enough to see what happens.

# %%
import json
import pathlib

import gymnasium
import jax
import matplotlib.pyplot as plt
import numpy as np

import traces_jax
import traces_jax.gym  # registers the tasks with Gymnasium

# %% [markdown]
# ## Train
#
# `experiment` returns the settings of an experiment; `train` runs it, or resumes it, and returns the run folder.

# %%
config = traces_jax.experiment("ball_run")
config.steps = 200_000
run = traces_jax.train(config, "runs/quickstart")

# %% [markdown]
# ## Curves
#
# A run writes a row of numbers for each iteration to `metrics.jsonl`.

# %%
rows = [json.loads(line) for line in pathlib.Path(run, "metrics.jsonl").read_text().splitlines()]
steps = [row["steps"] for row in rows]
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(steps, [row["episode/return"] for row in rows])
left.set(xlabel="environment steps", ylabel="return of an episode")
right.plot(steps, [row["episode/cost"] for row in rows])
right.axhline(config.constraint.cost_limit, color="black", linestyle="dashed", label="limit")
right.set(xlabel="environment steps", ylabel="cost of an episode (the learner does not see it)")
right.legend()
print(f"labelled episodes: {rows[-1]['labels/trajectories']:.0f} of {steps[-1] // 100}")

# %% [markdown]
# ## Play the policy
#
# `policy(observation)` returns the action and remembers the episode; `reset` begins another one. Without `step`, `load`
# takes the newest policy that satisfied the constraint in training. This run is short, so the last one is shown.

# %%
policy = traces_jax.load(run, step="latest")
env = gymnasium.make("traces_jax/SafetyBallRun-v0")


def play(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations [T, O], actions [T, A] and costs [T] of an episode."""
    policy.reset()
    observation, _ = env.reset(seed=seed)
    observations, actions, costs, ended = [], [], [], False
    while not ended:
        observations.append(observation)
        actions.append(policy(observation))
        observation, _, terminated, truncated, info = env.step(actions[-1])
        costs.append(info["cost"])
        ended = terminated or truncated
    return np.array(observations), np.array(actions), np.array(costs)


clips = [play(seed) for seed in range(3)]

# %% [markdown]
# ## Credits
#
# The estimator gives each step its credit for a violation, and the probability that the episode is acceptable so far.

# %%
assert policy.estimator is not None
observations, actions, costs = clips[0]
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(policy.estimator.credits(observations, actions))
left.set(xlabel="step", ylabel="credit")
right.plot(policy.estimator.probability(observations, actions), label="estimated probability: acceptable")
right.plot(np.cumsum(costs) / config.constraint.cost_limit, label="true cost so far / limit", linestyle="dashed")
right.set(xlabel="step", ylim=(0, None))
right.legend()

# %% [markdown]
# ## Label three clips
#
# You are the labeler: 1 for an acceptable episode, 0 for another one. Here the rule answers in your place; in training,
# a few hundred such answers are all that the learner gets.

# %%
labels = [int(clip[2].sum() <= config.constraint.cost_limit) for clip in clips]
for number, (clip, label) in enumerate(zip(clips, labels, strict=True)):
    estimated = policy.estimator.probability(*clip[:2])[-1]
    print(f"clip {number}: labelled {label}, the estimator's probability is {estimated:.2f}")

# %% [markdown]
# ## Many environments, and inside a compiled program
#
# A batch of observations gives a batch of actions. `policy.step` is the same as a pure function, for `jit` and `scan`.

# %%
policy.reset()
print(policy(np.stack([clip[0][0] for clip in clips])))


@jax.jit
def two_steps(first, second):
    action, memory = policy.step(policy.begin(1), first[None])
    return action, policy.step(memory, second[None])[0]


print(two_steps(observations[0], observations[1]))
