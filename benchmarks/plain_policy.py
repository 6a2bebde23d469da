"""A run's policy as plain arrays, and its mean action in NumPy, for places without JAX."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Policy = Mapping[str, np.ndarray]
_LAYER = ("input_kernel", "hidden_kernel", "input_bias", "hidden_bias")


def export(config: Any, state: Any) -> dict[str, np.ndarray]:
    """All that the mean action of one lane depends on. config, state: of that lane, as `core.learner` has them.

    Only arrays and texts, so that `np.load` reads them without pickle. A value that is not normalized has mean 0,
    deviation 1 and no bound.
    """
    from traces_jax.core import normalize  # not needed to act

    assert state.runner.memory.solver is None, "values that a solver carries are not exported"

    def statistics(name: str, found: Any, wanted: bool) -> dict[str, np.ndarray]:
        known = wanted and found.count > 1
        values = (found.mean, normalize.std(found), normalize.CLIP) if known else (0.0, 1.0, np.inf)
        return {
            f"{name}.{part}": np.asarray(value, np.float32)
            for part, value in zip(("mean", "std", "clip"), values, strict=True)
        }

    actor = state.agent.actor.params["params"]["MLP_0"]
    policy = {
        "activation": np.asarray(config.policy.activation),
        "bounded": np.asarray(config.policy.mean == "tanh"),
        **statistics("observation", state.normalizers.observation, config.normalize.observations),
    }
    for number in range(len(actor)):
        dense = actor[f"Dense_{number}"]
        policy |= {f"actor.{number}.{part}": np.asarray(dense[part], np.float32) for part in ("kernel", "bias")}
    if state.normalizers.summary is None:
        return policy
    reads = config.estimator.normalize_inputs
    policy |= statistics("summary", state.normalizers.summary, True)
    policy |= statistics("input", state.normalizers.observation, reads)
    policy["input.action_clip"] = np.asarray(config.estimator.action_clip if reads else np.inf, np.float32)
    for number, layer in enumerate(state.source.fitted.params.layers):
        policy |= {f"gru.{number}.{part}": np.asarray(getattr(layer, part), np.float32) for part in _LAYER}
    return policy


def begin(policy: Policy) -> list[np.ndarray]:
    """The memory at the start of an episode: the state [H] of each GRU layer; empty without an estimator."""
    return [np.zeros(len(policy[f"gru.{number}.hidden_kernel"]), np.float32) for number in range(_count(policy, "gru"))]


def act(policy: Policy, memory: list[np.ndarray], observation: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The mean action [A] for a raw observation [O], and the memory after the step."""
    observation = np.asarray(observation, np.float32)
    summary = [_normalized(policy, "summary", memory[-1])] if memory else []
    units = np.concatenate([_normalized(policy, "observation", observation), *summary])
    last = _count(policy, "actor") - 1
    for number in range(last + 1):
        units = units @ policy[f"actor.{number}.kernel"] + policy[f"actor.{number}.bias"]
        if number < last:
            units = np.tanh(units) if policy["activation"] == "tanh" else np.maximum(units, 0)
    action = np.tanh(units) if policy["bounded"] else units
    after: list[np.ndarray] = []
    if memory:
        clip = policy["input.action_clip"]
        below = np.concatenate([_normalized(policy, "input", observation), np.clip(action, -clip, clip)])
        for number, before in enumerate(memory):
            below = _gru(policy, f"gru.{number}", below, before)
            after.append(below)
    return action, after


def _gru(policy: Policy, layer: str, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
    """The next state [H] of a layer. Gates in PyTorch's order: reset, update, new."""
    from_input = np.split(inputs @ policy[f"{layer}.input_kernel"] + policy[f"{layer}.input_bias"], 3)
    from_state = np.split(state @ policy[f"{layer}.hidden_kernel"] + policy[f"{layer}.hidden_bias"], 3)
    reset, update = (1 / (1 + np.exp(-(from_input[gate] + from_state[gate]))) for gate in (0, 1))
    new = np.tanh(from_input[2] + reset * from_state[2])
    return new + update * (state - new)


def _normalized(policy: Policy, name: str, value: np.ndarray) -> np.ndarray:
    clip = policy[f"{name}.clip"]
    return np.clip((value - policy[f"{name}.mean"]) / policy[f"{name}.std"], -clip, clip)


def _count(policy: Policy, name: str) -> int:
    """The number of layers called name.0, name.1, ..."""
    return len({key.split(".")[1] for key in policy if key.startswith(f"{name}.")})
