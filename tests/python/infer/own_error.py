# SPDX-License-Identifier: Apache-2.0
"""The error of an undivided float32 model compared with float64, which determines the allowed deviation of
divisions."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch

from atoll.infer import Bundle, run_graph

Tensors = Sequence[torch.Tensor]
# Units in the last place of the largest value. Below that, 50 % more is an accident of the last few roundings.
MAGNIFIED = 16


def largest(tensors: Tensors) -> float:
    return max((t.double().abs().max().item() for t in tensors if t.is_floating_point() and t.numel()), default=0.0)


def deviation(found: Tensors, truth: Tensors) -> float:
    """Returns the error of the float that is furthest off."""
    worst = 0.0
    for one, other in zip(found, truth, strict=True):
        if other.is_floating_point() and other.numel():
            error = (one.double() - other.double()).abs().max().item()
            worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def own_error(bundle: Bundle, inputs: Tensors, default: Tensors, truth: Tensors) -> float:
    """Returns the error of the undivided model, whose answer is `default`: its deviation, or the largest deviation
    with other kernels if that is more than 50 % larger (docs/split-inference.md). At least one unit in the last
    place."""
    unit = torch.finfo(torch.float32).eps * largest(truth)
    others = [deviation(answer, truth) for answer in answers_of_other_kernels(bundle, inputs)]
    return judged(deviation(default, truth), others, unit)


def judged(error: float, others: Sequence[float], unit: float) -> float:
    """Returns the error, given the deviations with the default kernels and with others."""
    worst = max(others)
    return worst if worst > max(1.5 * error, MAGNIFIED * unit) else max(error, unit)


def answers_of_other_kernels(bundle: Bundle, inputs: Tensors) -> Iterator[list[torch.Tensor]]:
    """Yields answers of the undivided model with the kernels that PyTorch lets its users choose."""
    turned = Bundle(bundle.graph, {name: _channels_last(each) for name, each in bundle.weights.items()},
                    bundle.inputs, bundle.output)  # fmt: skip
    for threads in (1, 2):
        for one_dnn in (True, False):
            with _kernels(threads, one_dnn):
                yield run_graph(bundle, list(inputs))
                yield run_graph(turned, [_channels_last(each) for each in inputs])


@contextlib.contextmanager
def _kernels(threads: int, one_dnn: bool) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.backends.mkldnn.flags(enabled=one_dnn):
            yield
    finally:
        torch.set_num_threads(before)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
