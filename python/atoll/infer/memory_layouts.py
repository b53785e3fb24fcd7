# SPDX-License-Identifier: Apache-2.0
"""Replaces operators that depend on a tensor's memory layout by operators that depend on its shape only: on two
machines, and in parts, tensors have other layouts than in the module."""

from collections.abc import Sequence
from typing import Any

import torch

from atoll.infer.errors import ExportError

aten = torch.ops.aten
STRIDED = {aten.as_strided.default, aten.as_strided_copy.default}
# They write by position in memory, or use memory that is not a tensor of the graph.
_NO_SHAPE = {"aten::as_strided_scatter", "aten::set", "aten::resize", "aten::resize_as", "aten::_resize_output"}

Step = tuple[Any, tuple[Any, ...]]  # an operator, and its arguments after the tensor


def refuse_by_memory(target: Any) -> None:
    if target._schema.name in _NO_SHAPE:
        raise ExportError(
            "it depends on a tensor's memory layout, which differs between machines: index or slice the tensor instead"
        )


def steps_of(tensor: torch.Tensor, size: list[int], stride: list[int], offset: int | None) -> list[Step]:
    """Returns the steps that give the result of as_strided by shape, for a tensor with the layout of `tensor`: its
    elements in memory order, then windows of windows. Raises ExportError if as_strided reads memory between or after
    the tensor's elements."""
    if 0 in size:
        return [(aten.new_zeros.default, (list(size),))]
    held = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-held[dim], dim))
    count = tensor.numel()
    if not _is_dense([tensor.shape[dim] for dim in order], [held[dim] for dim in order]):
        raise ExportError("it reads a tensor with gaps between its elements: call contiguous() first")
    begin = (tensor.storage_offset() if offset is None else offset) - tensor.storage_offset()
    span = 1 + sum((rows - 1) * step for rows, step in zip(size, stride, strict=True))
    if begin < 0 or begin + span > count:
        raise ExportError("it reads memory outside of its tensor: slice the whole tensor instead")
    steps: list[Step] = []
    if order != list(range(tensor.dim())):
        steps.append((aten.permute.default, (order,)))
    steps.append((aten.reshape.default, ([count],)))
    if span != count:
        steps.append((aten.slice.Tensor, (0, begin, begin + span, 1)))
    for dim, (rows, step) in enumerate(zip(size, stride, strict=True)):
        span -= (rows - 1) * step
        if step == 0:
            shape = [*size[:dim], rows, span]
            steps += [(aten.unsqueeze.default, (dim,)), (aten.expand.default, (shape,))]
        else:
            steps.append((aten.unfold.default, (dim, span, step)))
    return [*steps, (aten.select.int, (len(size), 0))]


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Returns whether the dimensions, slowest first, leave no gaps."""
    expected = 1
    for rows, step in zip(reversed(shape), reversed(stride), strict=True):
        if rows != 1 and step != expected:
            return False
        expected *= rows
    return True
