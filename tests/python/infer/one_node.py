# SPDX-License-Identifier: Apache-2.0
"""One call of an operator as a graph, and the same call for part of its rows."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from testing import testing


@dataclass
class Call:
    """A call of `op`, whose output must be computable in parts along the dimensions `local`."""

    op: Any  # torch.ops.aten.relu.default
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    local: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"{self.op} of {[tuple(t.shape) for t in tensors_of(self.values())]} with {self.args} {self.kwargs}"

    def values(self) -> list[Any]:
        """Returns every argument of the schema in order."""
        arguments = self.op._schema.arguments
        positional = dict(zip([argument.name for argument in arguments], self.args, strict=False))
        given = {**positional, **self.kwargs}
        return [given.get(argument.name, argument.default_value) for argument in arguments]


def outputs_of(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def tensors_of(values: list[Any]) -> list[torch.Tensor]:
    """Returns the tensors among arguments, including those in lists, in order."""
    flat = [entry for value in values for entry in (value if isinstance(value, list | tuple) else [value])]
    return [value for value in flat if isinstance(value, torch.Tensor)]


def call_with(op: Any, values: list[Any]) -> list[torch.Tensor]:
    if op in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        op = torch.ops.aten.reshape.default  # a slice has different strides than the whole
    arguments = op._schema.arguments
    positional = [value for value, argument in zip(values, arguments, strict=True) if not argument.kwarg_only]
    named = {a.name: value for value, a in zip(values, arguments, strict=True) if a.kwarg_only}
    return outputs_of(op(*positional, **named))


def replaced(values: list[Any], tensors: list[torch.Tensor]) -> list[Any]:
    """Returns the arguments with other tensors in place of theirs."""
    rest = iter(tensors)

    def of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return next(rest)
        if isinstance(value, list | tuple):
            return [next(rest) if isinstance(entry, torch.Tensor) else entry for entry in value]
        return value

    return [of(value) for value in values]


def argument_json(value: Any, kind: str, ids: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": next(ids)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, list | tuple):
        if "Tensor" in kind:
            return {"tensors": [None if entry is None else next(ids) for entry in value]}
        return {"floats" if "float" in kind else "ints": list(value)}
    return value


def graph_json(call: Call, outputs: list[torch.Tensor]) -> str:
    """Returns the graph whose inputs are the call's tensors."""
    values = call.values()
    tensors = tensors_of(values)
    ids = iter(range(len(tensors)))
    kinds = [str(argument.type) for argument in call.op._schema.arguments]
    schema = call.op._schema
    node = {
        "op": schema.name,
        "overload": schema.overload_name,
        "args": [argument_json(value, kind, ids) for value, kind in zip(values, kinds, strict=True)],
        "outputs": list(range(len(tensors), len(tensors) + len(outputs))),
        "list": len(schema.returns) == 1 and len(outputs) > 1,
    }
    described = [{"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for t in [*tensors, *outputs]]
    return json.dumps(
        {
            "atoll_graph": 1,
            "tensors": described,
            "inputs": list(range(len(tensors))),
            "weights": [],
            "nodes": [node],
            "outputs": [{"tensor": len(tensors)}],
        }
    )


def padded(tensor: torch.Tensor, dim: int, low: int, high: int, value: float) -> torch.Tensor:
    pad = [0] * (2 * tensor.dim())
    pad[2 * (tensor.dim() - 1 - dim)] = low
    pad[2 * (tensor.dim() - 1 - dim) + 1] = high
    return torch.nn.functional.pad(tensor, pad, value=value)


def decoded(value: Any) -> Any:
    """Decodes a value of a graph's JSON."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return float(content) if kind == "float" else content


def part_of(call: Call, graph: str, dim: int, begin: int, end: int) -> list[torch.Tensor]:
    """Computes rows [begin, end) of the outputs along `dim` from the rows of the operands that the rules name."""
    sliced = json.loads(testing.infer_slice(graph, 0, dim, begin, end))
    values = call.values()
    parts = []
    for tensor, read in zip(tensors_of(values), sliced["operands"], strict=True):
        whole = read["dim"] < 0
        rows = read["end"] - read["begin"]
        parts.append(tensor if whole else tensor.narrow(read["dim"], read["begin"], rows).clone())
    for pad in sliced["pads"]:
        index = pad["operand"]
        parts[index] = padded(parts[index], pad["dim"], pad["low"], pad["high"], decoded(pad["value"]))
    values = replaced(values, parts)
    for change in sliced["changes"]:
        values[change["argument"]] = decoded(change["value"])
    low, high = sliced["keep"]
    made = call_with(call.op, values)
    fits = [output.dim() > dim and output.shape[dim] >= high for output in made]
    return [output.narrow(dim, low, high - low) if fit else output for output, fit in zip(made, fits, strict=True)]
