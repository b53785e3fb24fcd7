# SPDX-License-Identifier: Apache-2.0
"""Converts operators' arguments between Python and a graph's JSON, by the types of their schemas."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from atoll.infer.dtypes import BY_NAME, CHOICE, name_of
from atoll.infer.errors import ExportError
from atoll.infer.graph import MAX_ELEMENTS

# Defaults in schemas are the numbers of C++ enumerators.
_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


@dataclass
class Made:
    """A tensor of the new graph, among arguments that are nodes of the old one."""

    place: int


TensorId = Callable[[Any], int]  # the number of a node or of a made tensor


def complete(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Returns every argument of the schema with its value, in order; defaults for omitted arguments."""
    found = []
    for place, argument in enumerate(schema.arguments):
        if place < len(args) and not argument.kwarg_only:
            value = args[place]
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            raise ExportError(f"{schema.name} is called without its argument {argument.name}")
        found.append((argument, value))
    return found


def encode(argument: Any, value: Any, tensor_id: TensorId) -> Any:
    """Returns the JSON of one argument. A Python number in a tensor's place stays a number, because tensors promote
    dtypes differently."""
    kind, optional = argument.real_type, False
    if kind.kind() == "OptionalType":
        kind, optional = kind.getElementType(), True
    try:
        if value is None:
            if kind.kind() == "TensorType" and not optional:
                raise ExportError("is None, but must be a tensor")
            return None
        if kind.kind() == "ListType":
            return _encode_list(kind.getElementType(), value, getattr(argument, "N", None), tensor_id)
        return _encode_one(kind.kind(), value, tensor_id)
    except ExportError as error:
        raise ExportError(f"its argument {argument.name} {error}") from None


def _encode_one(kind: str, value: Any, tensor_id: TensorId) -> Any:
    if isinstance(value, fx.Node | Made):
        return {"tensor": tensor_id(value)}
    if kind == "ScalarTypeType":
        return {"dtype": _dtype(value)}
    if kind == "MemoryFormatType":
        return {"memory_format": _bare(_FORMATS[value] if isinstance(value, int) else value)}
    if kind == "LayoutType":
        if value not in (torch.strided, 0):
            raise ExportError(f"is {value}: only strided tensors can be captured")
        return {"layout": "strided"}
    if kind == "DeviceObjType":
        return {"device": True}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, bool) and kind in ("FloatType", "IntType", "SymIntType"):
        value = int(value)  # where PyTorch accepts a bool as a number
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _float(value) if kind == "FloatType" else _integer(value)
    if isinstance(value, float):
        return _float(value)
    raise ExportError(f"is {value!r}: a {type(value).__name__} cannot be written into a graph")


def _encode_list(element: Any, value: Any, length: int | None, tensor_id: TensorId) -> Any:
    kind = element.kind()
    items = list(value) if isinstance(value, list | tuple) else [value]
    if length and len(items) == 1:
        items *= length  # one number stands for all dimensions
    if kind == "OptionalType" or kind == "TensorType":
        return {"tensors": [None if item is None else tensor_id(item) for item in items]}
    if not all(type(item) in (bool, int, float) for item in items):
        raise ExportError(f"is {items!r}: this kind of list cannot be written into a graph")
    if kind == "BoolType":
        return {"bools": [bool(item) for item in items]}
    if kind == "FloatType" or any(isinstance(item, float) for item in items):
        return {"floats": [item if math.isfinite(item) else _word(item) for item in map(float, items)]}
    return {"ints": [_integer(int(item)) for item in items]}


def _dtype(value: Any) -> str:
    dtype = _DTYPES[value] if isinstance(value, int) and value < len(_DTYPES) else value
    if not isinstance(dtype, torch.dtype) or name_of(dtype) not in BY_NAME:
        raise ExportError(f"is the dtype {_bare(dtype)}: choose from {CHOICE}")
    return name_of(dtype)


def _bare(value: Any) -> str:
    return str(value).removeprefix("torch.")


def entries(encoded: Sequence[Any]) -> int:
    """Counts a node's arguments, including the entries of lists."""
    lists = (next(iter(each.values())) for each in encoded if isinstance(each, dict))
    return len(encoded) + sum(len(each) for each in lists if isinstance(each, list))


def _integer(value: int) -> int:
    if abs(value) >= MAX_ELEMENTS:
        raise ExportError(f"is {value}: integers in a graph must be smaller than 2^40")
    return value


def _float(value: float) -> Any:
    number = float(value)
    return number if math.isfinite(number) else {"float": _word(number)}


def _word(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def decode(argument: Any, tensors: Sequence[Any], device: torch.device) -> Any:
    """Returns the Python value that `encode` has written; `tensors` are those made so far, by number."""
    if not isinstance(argument, dict):
        return argument
    ((kind, content),) = argument.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tensors":
        return [None if place is None else tensors[place] for place in content]
    if kind == "dtype":
        return BY_NAME[content]
    if kind in ("memory_format", "layout"):
        return getattr(torch, content)
    if kind == "device":
        return device
    if kind == "floats":
        return [float(value) for value in content]
    return float(content) if kind == "float" else content
