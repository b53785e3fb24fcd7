# SPDX-License-Identifier: Apache-2.0
"""Random calls of the operators that need sums over a dimension of their first operand, by family."""

import random
from collections.abc import Callable, Iterator

import torch

from one_node import Call

aten = torch.ops.aten
Summing = tuple[Call, int]  # each with the dimension that is split and summed over


def image(dice: random.Random) -> torch.Tensor:
    """Returns an image whose values are not centred at 0."""
    spatial = [dice.randint(3, 9) for _ in range(dice.randint(1, 3))]
    return torch.randn(2, 6, *spatial, dtype=torch.float64) + dice.choice([0, 3])


def place(dice: random.Random, x: torch.Tensor) -> int:
    return dice.randint(2, x.dim() - 1)


def vector(size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64)


def reductions(dice: random.Random) -> Iterator[Summing]:
    x = image(dice)
    dim = place(dice, x)
    keeps = dice.random() < 0.5
    several = dice.choice([[dim], [dim - x.dim()], sorted({1, dim}), list(range(2, x.dim()))])
    for op in (aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default, aten.logsumexp.default):
        yield Call(op, (x, several, keeps)), dim
    for op in (aten.mean.default, aten.sum.default, aten.max.default, aten.min.default):
        yield Call(op, (x,)), dim
    yield Call(aten.mean.dim, (x, None, keeps)), dim
    yield Call(aten.sum.dim_IntList, (x, several, keeps), {"dtype": torch.float32}), dim
    yield Call(aten.sum.dim_IntList, ((x * 10).to(torch.int32), several, keeps)), dim
    far = x + 100  # from zero, like pixels
    for op in (aten.var.correction, aten.std.correction):
        yield Call(op, (far, several), {"correction": dice.choice([None, 0, 1, 2.5]), "keepdim": keeps}), dim
    for op in (aten.var.dim, aten.std.dim):
        yield Call(op, (far, several, dice.random() < 0.5, keeps)), dim
    yield Call(aten.linalg_vector_norm.default, (x, 2, several, keeps)), dim


def pools(dice: random.Random) -> Iterator[Summing]:
    x = image(dice)
    spatial = x.dim() - 2
    dim = place(dice, x)
    outputs = [dice.choice([1, 1, 2]) for _ in range(spatial)]
    outputs[dim - 2] = 1
    op = [aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d][spatial - 1]
    yield Call(op.default, (x, outputs)), dim
    if spatial == 2:
        yield Call(aten._adaptive_avg_pool2d.default, (x, outputs)), dim


def norms(dice: random.Random) -> Iterator[Summing]:
    x = image(dice)
    dim = place(dice, x)
    groups = dice.choice([1, 2, 3, 6])
    weight, bias = dice.choice([(None, None), (vector(6), vector(6)), (vector(6), None)])
    yield Call(aten.group_norm.default, (x, groups, weight, bias, 1e-5, False)), dim
    places = x[0, 0].numel()
    native = (x, weight, bias, 2, 6, places, groups, 1e-3)
    yield Call(aten.native_group_norm.default, native), dim
    yield Call(aten.instance_norm.default, (x, weight, bias, None, None, True, 0.1, 1e-5, False)), dim
    first = dice.randint(1, dim)
    sizes = list(x.shape[first:])
    scale, shift = dice.choice([(None, None), (torch.randn(sizes).double(), torch.randn(sizes).double())])
    yield Call(aten.layer_norm.default, (x, sizes, scale, shift, 1e-5, False)), dim
    yield Call(aten.native_layer_norm.default, (x, sizes, scale, shift, 1e-5)), dim
    yield Call(aten.rms_norm.default, (x, sizes, scale, 1e-6)), dim


def softmaxes(dice: random.Random) -> Iterator[Summing]:
    x = 5 * image(dice)
    dim = place(dice, x)
    yield Call(aten.softmax.int, (x, dim)), dim
    yield Call(aten._softmax.default, (x, dim - x.dim(), False)), dim
    yield Call(aten.log_softmax.int, (x, dim)), dim
    yield Call(aten._log_softmax.default, (x, dim, False)), dim
    if x.shape[dim] > 4:  # otherwise a state of two float64 would not be smaller than the rows
        yield Call(aten.softmax.int, (x.float(), dim, torch.float64)), dim
    hidden = x.clone()
    rows = dice.randint(0, x.shape[dim] - 1)
    hidden.narrow(dim, rows, x.shape[dim] - rows).fill_(-torch.inf)  # sometimes all rows, which gives NaN
    yield Call(aten.softmax.int, (hidden, dim)), dim
    yield Call(aten.logsumexp.default, (hidden, [dim])), dim


def products(dice: random.Random) -> Iterator[Summing]:
    inside = dice.randint(12, 40)
    shape = [dice.randint(1, 3) for _ in range(dice.randint(0, 2))]
    x = torch.randn(*shape, inside, dtype=torch.float64)
    weight = torch.randn(dice.randint(1, 5), inside, dtype=torch.float64)
    yield Call(aten.linear.default, (x, weight, dice.choice([None, vector(weight.shape[0])]))), x.dim() - 1


FAMILIES: list[Callable[[random.Random], Iterator[Summing]]] = [reductions, pools, norms, softmaxes, products]
