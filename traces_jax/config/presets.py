"""Named groups of settings.

`ours` is the defaults and the experiment files. `paper` sets the learning algorithm to the values of the paper's tables
or, where a table has no value, of the authors' code. It does not set the problem, which stays the experiment file's:
task, steps, seeds, environment.count and .steps, constraint.cost_limit, labels.noise, query.budget, method.source and
.solver, estimator.init, and the groups run, collect and pretrain. `accelerator` is for thousands of environments: short
rollouts through which episodes continue, and few large minibatches (docs/accelerators.md).

Precedence, lowest first: the defaults, a preset named by the experiment file, the file, a preset named on the command
line, other fields of the command line.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from traces_jax import config as config_lib
from traces_jax.config import Config

# For a bound that should have no effect.
_NO_BOUND = 1e9

_PAPER: dict[str, Any] = {
    "environment": {"reset_each_iteration": True, "terminate_when_unhealthy": False},
    "policy": {
        "hidden": (64, 64),
        "activation": "relu",
        "mean": "free",
        "initial_log_std": 0.0,
        "min_std": 0.0,
        "final_noise": 1.0,
    },
    "critic": {"hidden": (64, 64), "activation": "relu"},
    "normalize": {"observations": True, "rewards": True, "costs": "learned"},
    "ppo": {
        "passes": 40,
        "minibatch": 100,
        # From the table; the authors' code has 1e-4 for the actor.
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "actor_lr_decay": True,
        "clip": 0.2,
        "target_kl": 0.02,
        # From the table; the authors' code has 0.005 for BallRun.
        "entropy": 0.01,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "cost_gae_lambda": 0.95,
        "max_grad_norm": 0.5,
        "reward_critic_l2": 1e-3,
        "cost_critic_l2": 1e-2,
    },
    "lagrange": {
        "initial": 1e-3,
        "lr": 0.035,
        "maximum": _NO_BOUND,
        "proportional": 0.0,
        "window": 50,
    },
    # The paper's baselines are OmniSafe's.
    "method": {"order": "paper", "solver_version": "as_released"},
    "estimator": {
        "hidden": 4,
        "depth": 2,
        "decoder": (64, 64),
        "decoder_reads": "summary",
        "clamp": -7.0,
        "normalize_inputs": False,
        # Ours. The authors' code initializes the decoder's head with weights around -0.5, which cannot be set here.
        "initial_probability": 0.95,
        "initial_spread": 0.1,
        "memory": False,
        "cost": "mean",
    },
    "labels": {"interval": 20, "terminal_only": False, "early_end": "violating"},
    "query": {"fraction": 0.1, "batch": 20, "rule": "cv", "random_share": 0.0, "min_cv": 0.0},
    "refit": {
        "passes": 5,
        "steps": 13,
        "new_batch": 8,
        "stored_batch": 24,
        # All trajectories labelled in a run of the paper's length.
        "store": 1000,
        # From the table; the authors' code has 3e-3.
        "lr": 1e-3,
        "weight_decay": 1e-4,
        # The authors' code sets a bound where it has no effect.
        "max_grad_norm": _NO_BOUND,
        "target_accuracy": 0.975,
    },
    "constraint": {
        "form": "jensen",
        "d": 0.9,
        "initial_d": 1.0,
        "policy": "noisy",
        "correction": 0,
        "keep": False,
        "beyond_horizon": True,
    },
}
# Differences: (source, or empty for all, a word in the task's name, changes). Later ones win. C-T is as in the authors'
# code: refitted every 20 iterations, to a tenth of the trajectories or to half of them. RLSF is as in the script of its
# authors: all novel trajectories of an iteration, and 500 gradient steps; its labels are those of the TraCeS paper.
_DIFFERENCES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("", "Run-", {"ppo": {"passes": 20}, "labels": {"interval": 5}, "lagrange": {"initial": 1.0}}),
    ("", "Circle", {"query": {"fraction": 0.05}}),
    # A label after each iteration. There is no reward, so that the cost alone must count.
    ("", "Fall", {"query": {"batch": 1}, "lagrange": {"initial": _NO_BOUND, "window": 10}}),
    ("ct", "", {"query": {"fraction": 0.1, "batch": 40}, "refit": {"weight_decay": 0.0, "target_accuracy": 0.95}}),
    ("ct", "Circle", {"query": {"batch": 80}}),
    ("ct", "Run-", {"query": {"batch": 20}}),
    ("ct", "HopperVelocity", {"query": {"fraction": 0.5, "batch": 200}}),
    ("ct", "AntVelocity", {"query": {"fraction": 0.5, "batch": 200}}),
    ("ct", "AntRun", {"query": {"fraction": 0.5, "batch": 100}}),
    ("ct", "CarRun", {"query": {"fraction": 0.5, "batch": 100}}),
    ("rlsf", "", {"query": {"fraction": 1.0, "batch": 1}, "refit": {"passes": 1, "steps": 500, "weight_decay": 0.0}}),
    ("rlsf", "", {"refit": {"max_grad_norm": 1.0, "target_accuracy": 1.0}}),
    ("rlsf", "", {"rlsf": {"labels": "prefixes", "alpha": 0.1}}),
)


# 40 000 steps in an iteration, of which the steps of our experiment files are multiples.
_ACCELERATOR: dict[str, Any] = {
    "environment": {"count": 2000, "steps": 20, "reset_each_iteration": False},
    "ppo": {"passes": 4, "minibatch": 1800, "actor_lr": 1e-3, "critic_lr": 1e-3},
    "lagrange": {"window": 200},
    # Of so many episodes a smaller share is enough, for labels and for the mean action.
    "query": {"fraction": 0.02},
    "constraint": {"share": 0.1},
}


def accelerator(task: str, source: str) -> dict[str, Any]:
    """Settings for thousands of environments, the same for all tasks and sources."""
    del task, source
    return _ACCELERATOR


def paper(task: str, source: str) -> dict[str, Any]:
    """The paper's settings for a task and a source, as a tree of some fields."""
    tree = {group: dict(fields) for group, fields in _PAPER.items()}
    for name, word, changes in _DIFFERENCES:
        if name in ("", source) and word in task:
            for group, fields in changes.items():
                tree.setdefault(group, {}).update(fields)
    return tree


PRESETS: dict[str, Callable[[str, str], Mapping[str, Any]]] = {"paper": paper, "accelerator": accelerator}


def apply(tree: Mapping[str, Any], explicit: Collection[str]) -> dict[str, Any]:
    """The settings with the preset that they name applied.

    tree: an experiment's settings with the command line's changes. explicit: dotted paths given on the command line;
    they override the preset even where they repeat a default. A preset given on the command line overrides the file; a
    preset named in the file does not.
    """
    result = dict(tree)
    preset = PRESETS.get(str(tree.get("preset")))
    if preset is None:
        return result
    defaults, over_file = config_lib.to_dict(Config()), "preset" in explicit
    method = tree.get("method", {})
    source = method.get("source", "") if isinstance(method, Mapping) else ""
    for group, fields in preset(str(tree.get("task", defaults["task"])), str(source)).items():
        said = tree.get(group, {})
        if not isinstance(said, Mapping):
            continue  # Validation reports it later.
        result[group] = dict(said) | {
            name: value
            for name, value in fields.items()
            if f"{group}.{name}" not in explicit
            and (over_file or said.get(name, defaults[group][name]) == defaults[group][name])
        }
    return result
