# SPDX-License-Identifier: Apache-2.0
"""Rewrites operators that servers do not list as the operators that PyTorch itself computes them by.

A composite operator of PyTorch is a kernel that calls other operators. Eager mode runs those, so a graph of them gives
the same bits. For the few other operators, `_EXACT` names the listed operator that gives the same values."""

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from atoll import _C
from atoll.infer.export_errors import BY_VALUES

aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_MAX_LETTERS = 64  # in an einsum that servers list

Lowering = Callable[..., Any]


def decompositions() -> dict[Any, Lowering]:
    """Returns the operators for torch.export to decompose: composite operators that servers do not list, and those of
    `_EXACT`."""
    listed = listed_operators()
    table: dict[Any, Lowering] = {op: _written_out(op) for op in _composites() if name_of_operator(op) not in listed}
    return table | _EXACT | {aten.einsum.default: _einsum}


def listed_operators() -> frozenset[str]:
    """Returns the operators that servers admit, by names such as "aten::add.Tensor"."""
    return frozenset(_C.infer_admitted_operators())


def name_of_operator(op: Any) -> str:
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


@functools.cache
def _composites() -> list[Any]:
    found = torch.export.default_decompositions()
    return [op for op in found if op.namespace == "aten" and torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeImplicitAutograd")]  # fmt: skip


def _written_out(op: Any) -> Lowering:
    """Replaces an operator by the calls of its own kernel; the operator is kept if these depend on values."""

    def write_out(*args: Any, **kwargs: Any) -> Any:
        try:
            return op._op_dk(_COMPOSITE, *args, **kwargs)
        except BY_VALUES:
            return NotImplemented

    return write_out


def _einsum(equation: str, tensors: list[torch.Tensor], *, path: Any = None) -> Any:
    """Rewrites an einsum for servers, which list those of one or two tensors without repeated letters in an operand."""
    made_from, arrow, _ = equation.replace(" ", "").partition("->")
    operands = made_from.split(",")
    plain = all(re.fullmatch("[a-zA-Z]*", each) and len(set(each)) == len(each) for each in operands)
    if path is None and arrow and plain and len(operands) <= 2 and len(equation) <= _MAX_LETTERS:
        return NotImplemented
    return aten.einsum.default._op_dk(_COMPOSITE, equation, tensors, path=path)


def _zeros(size: list[int], *_: Any, **options: Any) -> Any:
    return aten.zeros.default(size, **_known(options))


def _new_zeros(self: torch.Tensor, size: list[int], *_: Any, **options: Any) -> Any:
    return aten.new_zeros.default(self, size, **_known(options))


def _zeros_like(self: torch.Tensor, **options: Any) -> Any:
    return aten.new_zeros.default(self, list(self.shape), **_known(options))


def _known(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in ("dtype", "device")}


def _rot90(self: torch.Tensor, k: int = 1, dims: tuple[int, int] = (0, 1)) -> Any:
    first, second = dims
    turns = k % 4
    if turns == 0:
        return aten.clone.default(self)
    if turns == 2:
        return aten.flip.default(self, [first, second])
    return aten.transpose.int(aten.flip.default(self, [second if turns == 1 else first]), first, second)


# Uninitialised memory may hold anything: here it holds zeros.
_EXACT: dict[Any, Lowering] = {
    aten.empty.memory_format: _zeros,
    aten.empty_like.default: _zeros_like,
    aten.empty_strided.default: _zeros,
    aten.new_empty.default: _new_zeros,
    aten.new_empty_strided.default: _new_zeros,
    aten.mv.default: aten.matmul.default,  # which calls mv and dot
    aten.dot.default: aten.matmul.default,
    aten.rot90.default: _rot90,
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}
