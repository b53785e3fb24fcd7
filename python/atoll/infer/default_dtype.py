# SPDX-License-Identifier: Apache-2.0
"""Operators that compute in PyTorch's default dtype, which is a setting of each process."""

import torch

from atoll.infer.dtypes import BY_NAME, name_of
from atoll.infer.errors import ExportError
from atoll.infer.graph import Graph, used_by


def node_of_default_dtype(graph: Graph) -> str | None:
    """Returns the first operator whose result is floating-point although neither an operand nor an argument is."""
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
