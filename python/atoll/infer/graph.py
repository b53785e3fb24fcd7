# SPDX-License-Identifier: Apache-2.0
"""A captured model as data: the JSON that the C++ runner reads. docs/export.md describes its fields."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from atoll.infer.dtypes import BY_NAME, name_of
from atoll.infer.errors import BundleError, ExportError

Graph = dict[str, Any]
VERSION = 1
MAX_NODES = 20_000
MAX_ARGUMENTS = 1_000  # of a node, including its results and the entries of lists
MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**40  # of a tensor, and the largest integer anywhere
_FIELDS = {"atoll_graph", "tensors", "inputs", "weights", "nodes", "outputs", "structure"}


def to_text(graph: Graph) -> bytes:
    """Returns the graph as text; equal graphs give equal bytes."""
    return json.dumps(graph, separators=(",", ":"), allow_nan=False).encode()


def from_text(text: bytes) -> Graph:
    """Parses and checks a graph. Raises BundleError unless each tensor is described, and made once, before it is
    used."""
    try:
        graph = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"the graph is not JSON: {error}") from None
    if not isinstance(graph, dict) or set(graph) != _FIELDS or graph["atoll_graph"] != VERSION:
        raise BundleError(f"the graph does not have version {VERSION}: export the model again with this Atoll")
    try:
        _check(graph)
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BundleError(f"the graph lacks a field or has one of the wrong type: {error!r}") from None
    return graph


def operators(graph: Graph) -> Counter[str]:
    """Counts the operators by name, without their overloads."""
    return Counter(node["op"] for node in graph["nodes"])


def of_weights(graph: Graph) -> dict[str, dict[str, Any]]:
    """Returns the graph's description of each weight, by its name."""
    return {weight["name"]: graph["tensors"][weight["tensor"]] for weight in graph["weights"]}


def of_inputs(graph: Graph) -> list[dict[str, Any]]:
    return [graph["tensors"][place] for place in graph["inputs"]]


def of_outputs(graph: Graph) -> list[dict[str, Any]]:
    return [graph["tensors"][output["tensor"]] for output in graph["outputs"]]


def used_by(node: dict[str, Any]) -> Iterator[int]:
    """Yields the tensors among a node's arguments, in order."""
    for argument in node["args"]:
        if isinstance(argument, dict):
            yield from [argument["tensor"]] if "tensor" in argument else ()
            yield from (place for place in argument.get("tensors", ()) if place is not None)


def node_of_default_dtype(graph: Graph) -> str | None:
    """Returns the first operator whose result is floating-point although neither an operand nor an argument is: it
    computes in PyTorch's default dtype, which is a setting of each process."""
    dtypes = [BY_NAME[tensor["dtype"]] for tensor in graph["tensors"]]
    for node in graph["nodes"]:
        makes_floats = any(dtypes[place].is_floating_point for place in node["outputs"])
        is_told = any(isinstance(argument, dict) and "dtype" in argument for argument in node["args"])
        if makes_floats and not is_told and not any(dtypes[place].is_floating_point for place in used_by(node)):
            return str(node["op"])
    return None


def refuse_default_dtype(graph: Graph) -> None:
    """Raises ExportError if the graph depends on a default dtype that servers do not have."""
    default = torch.get_default_dtype()
    node = node_of_default_dtype(graph)
    if node is not None and default is not torch.float32:
        raise ExportError(
            f"{node} computes in the default dtype, which is {name_of(default)} here but float32 on a server: pass the "
            f"dtype in forward, or call torch.set_default_dtype(torch.float32)"
        )


def _check(graph: Graph) -> None:
    for place, tensor in enumerate(graph["tensors"]):
        shape = tensor["shape"]
        if tensor["dtype"] not in BY_NAME or len(shape) > MAX_DIMENSIONS or not all(_is_size(size) for size in shape):
            raise BundleError(f"the graph's tensor {place} is {str(tensor)[:200]}: not a dtype and a shape")
    made = [False] * len(graph["tensors"])
    _make(made, graph["inputs"], "an input")
    _make(made, (weight["tensor"] for weight in graph["weights"]), "a weight")
    if len(of_weights(graph)) != len(graph["weights"]) or not all(isinstance(name, str) for name in of_weights(graph)):
        raise BundleError("the graph has two weights with the same name")
    if len(graph["nodes"]) > MAX_NODES:
        raise BundleError(f"the graph has {len(graph['nodes'])} nodes, but at most {MAX_NODES} are allowed")
    for place, node in enumerate(graph["nodes"]):
        what = f"node {place} ({str(node['op'])[:80]})"
        if not all(isinstance(node[field], str) for field in ("op", "overload")) or type(node["list"]) is not bool:
            raise BundleError(f"{what} of the graph has fields of the wrong type")
        if not isinstance(node.get("module", ""), str):
            raise BundleError(f"{what} of the graph has a module that is not a string")
        _use(made, used_by(node), what)
        _make(made, node["outputs"], what)
    _use(made, (output["tensor"] for output in graph["outputs"]), "an output")
    if not all(made):
        raise BundleError(f"nothing makes the graph's tensor {made.index(False)}")
    if set(graph["structure"]) != {"input", "output"}:
        raise BundleError("the graph's structure must have the fields input and output only")


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 <= size < MAX_ELEMENTS


def _make(made: list[bool], places: Iterable[Any], what: str) -> None:
    for place in places:
        if type(place) is not int or not 0 <= place < len(made) or made[place]:
            raise BundleError(f"{what} of the graph makes tensor {place}, which is already made or not described")
        made[place] = True


def _use(made: list[bool], places: Iterable[Any], what: str) -> None:
    for place in places:
        if type(place) is not int or not 0 <= place < len(made) or not made[place]:
            raise BundleError(f"{what} of the graph uses tensor {place}, which no earlier node makes")
