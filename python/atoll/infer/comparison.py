# SPDX-License-Identifier: Apache-2.0
"""Checks that a captured graph computes what its module computes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import FakeTensor

from atoll.infer import graph as graphs
from atoll.infer.bundle import Bundle
from atoll.infer.dtypes import name_of
from atoll.infer.errors import ExportError
from atoll.infer.export_errors import STATELESS
from atoll.infer.reference import run_graph
from atoll.infer.structure import Structure

_UNITS = 8  # units in the last place of the largest value by which other kernels may differ: 1e-6 of float32
_ROUNDING = 4  # beyond that: how many times as far from the float64 graph as the graph itself the module may be
_WRONG_SHARE = 1e-3  # of integers and booleans, which rounding may have moved across a threshold

Tensors = Sequence[torch.Tensor]


def compare(bundle: Bundle, call: Callable[[Tensors], Any], tensors: Tensors) -> list[torch.device]:
    """Returns the devices of the module's outputs. Raises ExportError, which says where, unless the graph gives for the
    example's `tensors` what `call`, one copy of the module, gives each time without gradients: the same structure, and
    values that differ only by rounding."""
    with torch.no_grad():
        wanted = _results(bundle, call(tensors))
        found = run_graph(bundle, tensors, _device(tensors))
        worst = _beyond_rounding(bundle, tensors, found, wanted)
        if worst is None:
            _refuse_state(bundle, call(tensors), tensors, found)
            return [output.device for output in wanted]
        advice = _layout_that_counts(bundle, call, tensors, found) or _ADVICE
    raise ExportError(f"the captured graph does not compute what the model computes: {worst}. {advice}")


def compare_orders(bundle: Bundle, call: Callable[[bool], Any]) -> None:
    """Raises ExportError if the module's result depends on the order of dict keys, because inputs are matched by key.
    `call` takes whether the example's keys are to be reversed."""
    with torch.no_grad():
        usual = _results(bundle, call(False))
        try:
            is_same = _worst(bundle, _results(bundle, call(True)), usual) is None
        except Exception:
            is_same = False
    if not is_same:
        raise ExportError(
            "the model's values depend on the order of the keys in an argument, but a session matches keys by name: "
            "read them by name, or take a list"
        )


def _refuse_state(bundle: Bundle, again: Any, tensors: Tensors, found: Tensors) -> None:
    """Raises ExportError if a second result differs from the graph's, which the first one has confirmed."""
    structure, wanted = Structure.of(again, "output")
    worst: str | None = "it has another structure"
    if structure.spec == bundle.output.spec:
        worst = _beyond_rounding(bundle, tensors, found, wanted)
    if worst is not None:
        raise ExportError(f"a second call of the model gives something else than the first ({worst}), {STATELESS}")


_ADVICE = (
    "It computes something else while it is captured: look for a branch on torch.compiler.is_compiling(), gradients, "
    "values or strides, and for a fast path of PyTorch (torch.backends.mha.set_fastpath_enabled(False) disables that "
    "of attention)"
)


def _results(bundle: Bundle, result: Any) -> Tensors:
    structure, wanted = Structure.of(result, "output")
    if any(isinstance(output, FakeTensor) for output in wanted):
        raise ExportError(
            "forward stored a tensor without values outside the module while it was captured, as in a global "
            "cache: empty it, and call the model once before the capture"
        )
    if structure.spec != bundle.output.spec:
        raise ExportError(f"the model returns another structure while it is captured than when it is called. {_ADVICE}")
    structure.refuse_computing_classes(wanted, "output")
    return wanted


def _beyond_rounding(bundle: Bundle, tensors: Tensors, found: Tensors, wanted: Tensors) -> str | None:
    """Describes the output that differs most, unless rounding explains it."""
    worst = _worst(bundle, found, wanted)
    return None if worst is None or _is_rounding(bundle, tensors, found, wanted) else worst


@dataclass(frozen=True)
class _Difference:
    """The deviation of one output. `off` is relative to the largest finite magnitude; for integers, the share of
    elements that differ."""

    off: float
    limit: float
    text: str


def _worst(bundle: Bundle, found: Tensors, wanted: Tensors) -> str | None:
    """Describes the output that is furthest beyond its limit."""
    worst: _Difference | None = None
    for name, one, other in zip(bundle.output.paths("output"), found, wanted, strict=True):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{name} is {_type(one)} in the graph, but {_type(other)} in the model"
        difference = _difference(name, one, other)
        if difference.off > difference.limit and (worst is None or difference.off > worst.off):
            worst = difference
    return None if worst is None else worst.text


def _difference(name: str, found: torch.Tensor, wanted: torch.Tensor) -> _Difference:
    found, wanted = found.cpu(), wanted.cpu()
    if not found.is_floating_point():
        differs = found != wanted
        share = differs.double().mean().item() if found.numel() else 0.0
        return _Difference(share, _WRONG_SHARE, f"{share:.2g} of {name} differs{_first(differs, found, wanted)}")
    off = _errors(found, wanted)
    worst = off.max().item() if off.numel() else 0.0
    text = f"{name} is off by {worst:.2g} of its largest magnitude{_first(off == worst, found, wanted)}"
    return _Difference(worst, _UNITS * torch.finfo(found.dtype).eps, text)


def _errors(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Returns each element's error, relative to the largest finite magnitude; infinite where only one is NaN, or the
    infinities differ."""
    one, other = found.double(), wanted.double()
    same = (one == other) | (one.isnan() & other.isnan())
    off = (one - other).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0)
    magnitudes = torch.cat([one.reshape(-1), other.reshape(-1)]).abs()
    largest = magnitudes[magnitudes.isfinite()].max() if bool(magnitudes.isfinite().any()) else magnitudes.new_zeros(())
    return torch.where(off > 0, off / largest, off)


def _first(places: torch.Tensor, found: torch.Tensor, wanted: torch.Tensor) -> str:
    if not bool(places.any()):
        return ""
    place = tuple(places.nonzero()[0].tolist())
    at = f" at {list(place)}" if place else ""
    return f"{at} ({found[place].item():.6g} from the graph, {wanted[place].item():.6g} from the model)"


def _device(tensors: Tensors) -> torch.device | str:
    return tensors[0].device if tensors else "cpu"


def _type(tensor: torch.Tensor) -> str:
    return f"{name_of(tensor.dtype)} {list(tensor.shape)}"


def _is_rounding(bundle: Bundle, tensors: Tensors, found: Tensors, wanted: Tensors) -> bool:
    """Returns whether the module is about as close to the float64 graph as the graph itself, in every float output."""
    if any((one.dtype, one.shape) != (other.dtype, other.shape) for one, other in zip(found, wanted, strict=True)):
        return False
    try:
        exact = run_graph(_in_float64(bundle), [_wide(tensor) for tensor in tensors], _device(tensors))
    except Exception:  # an operator without float64, or too little memory: the limit in units stays
        return False
    return all(map(_is_rounding_of_one, found, wanted, exact))


def _is_rounding_of_one(found: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor) -> bool:
    difference = _difference("", found, wanted)
    if difference.off <= difference.limit:
        return True
    if not found.is_floating_point() or found.dtype == torch.float64:
        return False
    own, modules = (_errors(each.cpu(), exact.cpu()).max().item() for each in (found, wanted))
    return modules <= _ROUNDING * max(own, difference.limit)


def _in_float64(bundle: Bundle) -> Bundle:
    text = graphs.to_text(bundle.graph)
    for dtype in ("float32", "float16", "bfloat16"):
        text = text.replace(f'"{dtype}"'.encode(), b'"float64"')
    weights = {name: _wide(weight) for name, weight in bundle.weights.items()}
    return Bundle(graphs.from_text(text), weights, bundle.inputs, bundle.output)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _layout_that_counts(bundle: Bundle, call: Callable[[Tensors], Any], tensors: Tensors, found: Tensors) -> str | None:
    """Returns the advice for a model that computes as captured if the same values are in row-major order."""
    odd = [name for name, tensor in zip(bundle.inputs.names(), tensors, strict=True) if not tensor.is_contiguous()]
    rows = [tensor.contiguous() for tensor in tensors]
    if not odd or _worst(bundle, found, _results(bundle, call(rows))) is not None:
        return None
    return (
        f"Its values depend on the memory layout (strides) of {', '.join(odd)}, but a session computes with inputs "
        f"in row-major order: pass {odd[0]}.contiguous() as the example"
    )
