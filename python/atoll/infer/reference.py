# SPDX-License-Identifier: Apache-2.0
"""Runs a graph one operator at a time through torch.ops: slow and simple, a reference for faster runners."""

from collections.abc import Sequence
from typing import Any

import torch

from atoll.infer import graph as graphs
from atoll.infer.arguments import decode
from atoll.infer.bundle import Bundle
from atoll.infer.inputs import check_tensors

_AS_RESHAPE = {("aten::view", ""), ("aten::_unsafe_view", "")}  # correct for all strides, not only for the example's


@torch.no_grad()
def run_graph(bundle: Bundle, inputs: Sequence[torch.Tensor], device: torch.device | str = "cpu") -> list[torch.Tensor]:
    """Returns the graph's outputs for these inputs. Inputs and weights are on `device`, and inputs are taken in
    row-major order. Raises InputError if inputs differ from the example. Outputs may share memory with each other,
    inputs and weights."""
    graph = bundle.graph
    check_tensors(inputs, graphs.of_inputs(graph), bundle.inputs.names())
    tensors: list[Any] = [None] * len(graph["tensors"])
    for place, tensor in zip(graph["inputs"], inputs, strict=True):
        tensors[place] = tensor.contiguous()
    for weight in graph["weights"]:
        tensors[weight["tensor"]] = bundle.weights[weight["name"]].contiguous()  # as in files
    last_use = {place: number for number, node in enumerate(graph["nodes"]) for place in graphs.used_by(node)}
    kept = {output["tensor"] for output in graph["outputs"]}
    for number, node in enumerate(graph["nodes"]):
        result = _run(node, tensors, torch.device(device))
        for place in graphs.used_by(node):
            if last_use[place] == number and place not in kept:
                tensors[place] = None  # so that the tensors of a large model do not accumulate
        several = node["list"] or len(node["outputs"]) > 1
        for place, value in zip(node["outputs"], result if several else [result], strict=True):
            tensors[place] = value
    return [tensors[output["tensor"]] for output in graph["outputs"]]


def _run(node: dict[str, Any], tensors: Sequence[Any], device: torch.device) -> Any:
    values = [decode(argument, tensors, device) for argument in node["args"]]
    if (node["op"], node["overload"]) in _AS_RESHAPE:
        return torch.ops.aten.reshape.default(*values)
    namespace, _, name = node["op"].partition("::")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), node["overload"] or "default")
    arguments = operator._schema.arguments
    first = next((place for place, argument in enumerate(arguments) if argument.kwarg_only), len(arguments))
    named = {argument.name: value for argument, value in zip(arguments[first:], values[first:], strict=True)}
    return operator(*values[:first], **named)
