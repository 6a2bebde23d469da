"""A policy as an ONNX graph: the same arithmetic as `core.deployed`, in the operations that ONNX runtimes know."""

from typing import Any

import jax
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from traces_jax.core import normalize
from traces_jax.core.deployed import Deployed
from traces_jax.core.normalize import RunningStatistics
from traces_jax.estimator import network
from traces_jax.estimator.gru import GruLayer
from traces_jax.host import errors
from traces_jax.solvers import saute

# Known to runtimes since 2021.
_OPSET, _IR = 15, 8


class Graph:
    """Nodes in the order of computation. Values are named; constants are stored with the graph."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def add(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node. Returns the name of its output, or a list of names."""
        names = [f"v{len(self._nodes)}_{place}" for place in range(outputs)]
        self._nodes.append(helper.make_node(operation, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """Stores an array. Returns its name."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def clip(self, value: str, low: float | None, high: float | None) -> str:
        """The value between two bounds."""
        bounds = ["" if bound is None else self.constant(bound) for bound in (low, high)]
        return self.add("Clip", value, *bounds)

    def linear(self, value: str, kernel: Any, bias: Any) -> str:
        """Value @ kernel + bias. kernel: [inputs, outputs]."""
        return self.add("Gemm", value, self.constant(kernel), self.constant(bias))

    def normalized(self, value: str, statistics: RunningStatistics) -> str:
        """As `normalize.apply`."""
        if statistics.count <= 1:
            return value
        centred = self.add("Sub", value, self.constant(statistics.mean))
        scaled = self.add("Div", centred, self.constant(jax.device_get(normalize.std(statistics))))
        return self.clip(scaled, -normalize.CLIP, normalize.CLIP)

    def split(self, value: str, sizes: list[int]) -> list[str]:
        """The parts of a value along its last axis."""
        if len(sizes) == 1:
            return [value]
        return self.add("Split", value, self.constant(sizes, np.int64), outputs=len(sizes), axis=-1)

    def joined(self, values: list[str]) -> str:
        """The values one after the other along their last axis."""
        return values[0] if len(values) == 1 else self.add("Concat", *values, axis=-1)

    def gru(self, layer: GruLayer, state: str, below: str) -> str:
        """As `gru.step`. state: [B, H]; below: [B, F]. Returns the new state."""
        hidden = layer.hidden_kernel.shape[0]
        from_input = self.split(self.linear(below, layer.input_kernel, layer.input_bias), [hidden] * 3)
        from_state = self.split(self.linear(state, layer.hidden_kernel, layer.hidden_bias), [hidden] * 3)
        reset, update = (
            self.add("Sigmoid", self.add("Add", mine, theirs))
            for mine, theirs in zip(from_input[:2], from_state[:2], strict=True)
        )
        new = self.add("Tanh", self.add("Add", from_input[2], self.add("Mul", reset, from_state[2])))
        return self.add("Add", new, self.add("Mul", update, self.add("Sub", state, new)))

    def model(self, inputs: dict[str, int | None], outputs: dict[str, tuple[str, int]], notes: dict[str, str]) -> Any:
        """The model. inputs: name -> size of a row, None for a number; outputs: name -> (value, size of a row)."""
        for name, (value, _) in outputs.items():
            self._nodes.append(helper.make_node("Identity", [value], [name]))
        shape = lambda size: ["batch"] if size is None else ["batch", size]  # noqa: E731
        graph = helper.make_graph(
            self._nodes,
            "policy",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape(size)) for name, size in inputs.items()],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape(size))
                for name, (_, size) in outputs.items()
            ],
            self._constants,
        )
        model = helper.make_model(
            graph, producer_name="traces_jax", opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
        )
        helper.set_model_props(model, notes)
        onnx.checker.check_model(model, full_check=True)
        return model


def build(deployed: Deployed, memory_size: int, notes: dict[str, str]) -> Any:
    """The ONNX model of a policy, with the inputs and outputs of `export.Flat`."""
    learner, config = deployed.learner, deployed.config
    policy = learner.policy(deployed.state)
    carried_size, summary_size = learner.solver.carried_size(config), learner.source.summary_size(config)
    if carried_size and not (deployed.reads_cost and isinstance(learner.solver, saute.Saute)):
        raise errors.UserError(
            f"method.solver={config.method.solver} carries numbers that depend on a learned cost, or on code outside "
            "this package; ONNX cannot hold that policy, --formats=jax can."
        )
    if summary_size and not isinstance(getattr(policy.learned, "params", None), network.Estimator):
        raise errors.UserError(
            f"the memory of method.source={config.method.source} is not a GRU of this package; ONNX cannot hold that "
            "policy, --formats=jax can."
        )
    graph = Graph()
    inputs: dict[str, int | None] = {"observation": learner.task.observation_size}
    observed = graph.normalized("observation", policy.normalizers.observation)
    parts = [observed if config.normalize.observations else "observation"]
    states: list[str] = []
    carried = started = ""
    if memory_size:
        inputs["memory"] = memory_size
        layers = [config.estimator.hidden] * config.estimator.depth if summary_size else []
        states = graph.split("memory", [*layers, *([carried_size, 1] if carried_size else [])])
        if carried_size:
            *states, carried, started = states
    if summary_size:
        assert policy.normalizers.summary is not None
        parts.append(graph.normalized(states[-1], policy.normalizers.summary))
    if carried_size:
        inputs["cost"] = None
        carried = _spent(graph, deployed, carried, started)
        parts.append(carried)
    action = _actor(graph, deployed, graph.joined(parts), policy.actor["params"])
    outputs = {"action": (action, learner.task.action_size)}
    after = []
    if summary_size:
        below = _estimator_inputs(graph, deployed, observed, action)
        for layer, state in zip(policy.learned.params.layers, states, strict=True):
            below = graph.gru(layer, state, below)
            after.append(below)
    if carried_size:
        ones = graph.add("Add", graph.add("Mul", started, graph.constant(0.0)), graph.constant(1.0))
        after += [carried, ones]
    if memory_size:
        outputs["next_memory"] = (graph.joined(after), memory_size)
    return graph.model(inputs, outputs, notes)


def _actor(graph: Graph, deployed: Deployed, context: str, params: dict[str, Any]) -> str:
    """As `networks.GaussianActor`, its mean."""
    settings = deployed.config.policy
    layers = params["MLP_0"]
    for place in range(len(layers)):
        dense = layers[f"Dense_{place}"]
        context = graph.linear(context, dense["kernel"], dense["bias"])
        if place < len(layers) - 1:
            context = graph.add({"relu": "Relu", "tanh": "Tanh"}[settings.activation], context)
    return graph.add("Tanh", context) if settings.mean == "tanh" else context


def _estimator_inputs(graph: Graph, deployed: Deployed, observed: str, action: str) -> str:
    """What the GRU reads of a step."""
    settings = deployed.config.estimator
    if not settings.normalize_inputs:
        return graph.joined(["observation", action])
    clip = float(settings.action_clip)
    return graph.joined([observed, graph.clip(action, -clip, clip)])


def _spent(graph: Graph, deployed: Deployed, carried: str, started: str) -> str:
    """The share of the budget that is left, [B, 1]: as `saute.spend`, and whole at the start of an episode."""
    solver, source, config = deployed.learner.solver, deployed.learner.source, deployed.config
    assert isinstance(solver, saute.Saute)
    whole = float(solver.whole(config, source.budget(config, deployed.state.source)))
    cost = graph.add("Unsqueeze", "cost", graph.constant([1], np.int64))
    share = graph.add("Div", cost, graph.constant(max(whole, saute.SMALLEST)))
    left = graph.add("Div", graph.add("Sub", carried, share), graph.constant(config.saute.gamma))
    left = graph.clip(left, saute.LEAST, None)
    fresh = graph.add("Sub", graph.constant(1.0), started)
    return graph.add("Add", graph.add("Mul", started, left), fresh)
