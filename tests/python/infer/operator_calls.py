# SPDX-License-Identifier: Apache-2.0
"""Random calls of the operators that have region rules, by family."""

import random
from collections.abc import Callable, Iterator

import torch

from one_node import Call

aten = torch.ops.aten


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def sizes(dice: random.Random, count: int, low: int, high: int) -> list[int]:
    return [dice.randint(low, high) for _ in range(count)]


def convolutions(dice: random.Random) -> Iterator[Call]:
    spatial = dice.randint(1, 3)
    op = [aten.conv1d, aten.conv2d, aten.conv3d][spatial - 1]
    groups = dice.choice([1, 1, 2])
    kernel = sizes(dice, spatial, 1, 4)
    dilation = sizes(dice, spatial, 1, 3)
    padding = sizes(dice, spatial, 0, 4)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    rows = [dice.randint(max(1, s - 2 * p), s + 8) for s, p in zip(spans, padding, strict=True)]
    x = tensor(2, 4, *rows)
    weight = tensor(6, 4 // groups, *kernel)
    bias = dice.choice([None, tensor(6)])
    stride = sizes(dice, spatial, 1, 3)
    local = {0, *range(2, spatial + 2)} | ({1} if groups == 1 else set())
    yield Call(op.default, (x, weight, bias, stride, padding, dilation, groups), {}, local)
    yield Call(op.padding, (x, weight, bias, [1] * spatial, "same", dilation, groups), {}, local)
    everything = (x, weight, bias, stride, padding, dilation, False, [0] * spatial, groups)
    yield Call(aten.convolution.default, everything, {}, local)


def transposed_convolutions(dice: random.Random) -> Iterator[Call]:
    spatial = dice.randint(1, 3)
    op = [aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input][spatial - 1]
    groups = dice.choice([1, 1, 2])
    kernel = sizes(dice, spatial, 1, 4)
    stride = sizes(dice, spatial, 1, 3)
    dilation = sizes(dice, spatial, 1, 3)
    more = [dice.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
    spans = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    padding = [dice.randint(0, min(2, span // 2)) for span in spans]
    x = tensor(2, 4, *sizes(dice, spatial, 1, 7))
    weight = tensor(4, 6 // groups, *kernel)
    local = {0, *range(2, spatial + 2)} | ({1} if groups == 1 else set())
    bias = dice.choice([None, tensor(6)])
    yield Call(op, (x, weight, bias, stride, padding, more, groups, dilation), {}, local)
    everything = (x, weight, bias, stride, padding, dilation, True, more, groups)
    yield Call(aten.convolution.default, everything, {}, local)


def pools(dice: random.Random) -> Iterator[Call]:
    spatial = dice.randint(1, 3)
    kernel = sizes(dice, spatial, 1, 4)
    stride = dice.choice([[], sizes(dice, spatial, 1, 4)])
    padding = [dice.randint(0, k // 2) for k in kernel]
    ceil_mode = dice.random() < 0.5
    x = tensor(2, 3, *[dice.randint(k, k + 9) for k in kernel])
    local = set(range(spatial + 2))
    means = [aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d][spatial - 1].default
    divisor = () if spatial == 1 else (dice.choice([None, None, 3]),)
    yield Call(means, (x, kernel, stride, padding, ceil_mode, dice.random() < 0.5, *divisor), {}, local)
    dilation = sizes(dice, spatial, 1, 2)
    wide = tensor(2, 3, *[dice.randint(2 * k, 2 * k + 8) for k in kernel])
    maxima = [aten.max_pool1d, aten.max_pool2d, aten.max_pool3d][spatial - 1].default
    yield Call(maxima, (wide, kernel, stride, padding, dilation, ceil_mode), {}, local)
    if spatial == 2:
        with_indices = aten.max_pool2d_with_indices.default
        yield Call(with_indices, (wide, kernel, stride, padding, dilation, ceil_mode), {}, local)


def adaptive_pools(dice: random.Random) -> Iterator[Call]:
    spatial = dice.randint(1, 3)
    outputs = sizes(dice, spatial, 2, 6)
    x = tensor(2, 3, *[m * dice.randint(1, 3) + dice.choice([0, 0, 1]) for m in outputs])
    local = set(range(spatial + 2))
    means = [aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d, aten.adaptive_avg_pool3d][spatial - 1]
    yield Call(means.default, (x, outputs), {}, local)
    if spatial == 2:
        yield Call(aten.adaptive_max_pool2d.default, (x, outputs), {}, local)


def resizes(dice: random.Random) -> Iterator[Call]:
    spatial = dice.randint(1, 3)
    x = tensor(1, 2, *sizes(dice, spatial, 2, 8))
    rows = list(x.shape[2:])
    wanted = [dice.choice([n, 2 * n, 3 * n, n + 3, max(2, n // 2)]) for n in rows]
    factors = [dice.choice([1.0, 2.0, 3.0, 0.5]) for _ in rows]
    local = {0, 1, *range(2, spatial + 2)}
    nearest = [aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d][spatial - 1]
    yield Call(nearest.vec, (x, wanted, None))  # some sizes are rounded differently, and are global
    yield Call(nearest.vec, (x, None, factors), {}, local)
    exact = getattr(aten, f"_upsample_nearest_exact{spatial}d")
    yield Call(exact.vec, (x, None, factors), {}, local)
    linear = [aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d][spatial - 1]
    smooth = [linear.vec, aten.upsample_bicubic2d.vec] if spatial == 2 else [linear.vec]
    for op in smooth:
        yield Call(op, (x, wanted, False, None), {}, local)
        yield Call(op, (x, wanted, True, None), {}, local)
        yield Call(op, (x, None, False, factors), {}, local)
        yield Call(op, (x, None, True, [2.0] * spatial), {}, local)
    if spatial == 2:
        yield Call(aten.upsample_bilinear2d.default, (x, wanted, False), {}, local)
        yield Call(aten.upsample_nearest2d.default, (x, [2 * n for n in rows]), {}, local)


def borders(dice: random.Random) -> Iterator[Call]:
    rows = sizes(dice, 2, 2, 8)
    x = tensor(2, 3, *rows)
    everywhere = set(range(4))
    cut = [dice.randint(-(n // 2), 5) for n in reversed(rows) for _ in range(2)]
    yield Call(aten.constant_pad_nd.default, (x, cut, 1.5), {}, everywhere)
    yield Call(aten.pad.default, (x, cut, "constant", None), {}, everywhere)
    inside = [dice.randint(0, n - 1) for n in reversed(rows) for _ in range(2)]
    yield Call(aten.pad.default, (x, inside, "reflect"), {}, everywhere)
    yield Call(aten.reflection_pad2d.default, (x, inside), {}, everywhere)
    yield Call(aten.pad.default, (x, sizes(dice, 4, 0, 9), "replicate"), {}, everywhere)
    yield Call(aten.replication_pad2d.default, (x, sizes(dice, 4, 0, 9)), {}, everywhere)
    yield Call(aten.pad.default, (x, inside, "circular"), {}, {0, 1})


def elements(dice: random.Random) -> Iterator[Call]:
    x = tensor(3, 4, 5)
    row = tensor(4, 1)
    everywhere = {0, 1, 2}
    unary = [aten.relu, aten.gelu, aten.silu, aten.hardswish, aten.hardsigmoid, aten.sigmoid, aten.exp, aten.neg]
    yield Call(dice.choice(unary).default, (x,), {}, everywhere)
    yield Call(aten.add.Tensor, (x, row), {"alpha": 2}, everywhere)
    yield Call(aten.mul.Tensor, (row, x), {}, everywhere)
    yield Call(aten.sub.Tensor, (tensor(1, 4, 1), tensor(3, 1, 5)), {}, everywhere)
    yield Call(aten.div.Tensor_mode, (x, row), {"rounding_mode": "floor"}, everywhere)
    yield Call(aten.where.self, (tensor(5) > 0, x, tensor(3, 1, 1)), {}, everywhere)
    yield Call(aten.masked_fill.Scalar, (x, tensor(4, 5) > 0, -1.0), {}, everywhere)
    yield Call(aten.pow.Tensor_Scalar, (x, 2), {}, everywhere)
    yield Call(aten.clamp.default, (x, -0.5, None), {}, everywhere)
    yield Call(aten.le.Scalar, (x, 0.1), {}, everywhere)
    yield Call(aten.clone.default, (x,), {}, everywhere)
    yield Call(aten.fill.Scalar, (x, 2.0), {}, everywhere)
    yield Call(aten.prelu.default, (x, tensor(4)), {}, everywhere)
    yield Call(aten.full.default, ([3, 4], 2.5), {"dtype": torch.float64}, {0, 1})
    yield Call(aten.arange.start_step, (2, 30, 3), {}, {0})
    yield Call(aten.new_ones.default, (x, [4, 2]), {}, {0, 1})


def views(dice: random.Random) -> Iterator[Call]:
    a, b, c = sizes(dice, 3, 2, 5)
    x = tensor(2, a, b * c)
    yield Call(aten.view.default, (x, [2, a, b, c]), {}, {0, 1, 2})
    yield Call(aten._unsafe_view.default, (x.reshape(2, a, b, c), [2, a * b, c]), {}, {0, 1, 2})
    yield Call(aten.reshape.default, (x, [-1, b]), {})
    yield Call(aten.flatten.using_ints, (x.reshape(2, a, b, c), 1, 2), {}, {0, 1, 2})
    yield Call(aten.unflatten.int, (x, -1, [b, -1]), {}, {0, 1, 2})
    yield Call(aten.permute.default, (x, dice.sample(range(3), 3)), {}, {0, 1, 2})
    yield Call(aten.transpose.int, (x, -1, 0), {}, {0, 1, 2})
    yield Call(aten.t.default, (tensor(a, b),), {}, {0, 1})
    yield Call(aten.movedim.intlist, (tensor(a, b, c, 2), [0, -1], [2, 0]), {}, {0, 1, 2, 3})
    yield Call(aten.squeeze.dim, (tensor(a, 1, b), 1), {}, {0, 1})
    yield Call(aten.squeeze.dims, (tensor(a, 1, b, 1), [1, -1]), {}, {0, 1})
    yield Call(aten.unsqueeze.default, (x, -2), {}, {0, 1, 3})
    yield Call(aten.expand.default, (tensor(a, 1), [3, -1, b]), {}, {0, 1, 2})
    yield Call(aten.repeat.default, (tensor(a, b), [2, 1, 3]), {}, {0, 1, 2})
    yield Call(aten.pixel_shuffle.default, (tensor(2, 18, a, b), 3), {}, {0, 2, 3})
    yield Call(aten.pixel_unshuffle.default, (tensor(2, 2, 2 * a, 2 * b), 2), {}, {0, 2, 3})


def parts(dice: random.Random) -> Iterator[Call]:
    rows = dice.randint(3, 9)
    x = tensor(2, rows, 6)
    every = {0, 1, 2}
    yield Call(aten.cat.default, ([x, tensor(2, 2, 6), tensor(2, 0, 6)], 1), {}, every)
    yield Call(aten.cat.default, ([x, tensor(0), tensor(2, rows, 1)], -1), {}, every)
    yield Call(aten.stack.default, ([x, x + 1], 1), {}, {0, 2, 3})
    bounds = (dice.randint(-rows, 2), dice.choice([None, rows - 1, 2**39]), dice.randint(1, 3))
    yield Call(aten.slice.Tensor, (x, 1, *bounds), {}, every)
    yield Call(aten.narrow.default, (x, 1, 1, rows - 1), {}, every)
    yield Call(aten.select.int, (x, 1, -1), {}, {0, 1})
    yield Call(aten.unbind.int, (x, 2), {}, {0, 1})
    yield Call(aten.split.Tensor, (x, 4, -1), {}, {0, 1})
    yield Call(aten.split_with_sizes.default, (x, [1, 5], 2), {}, {0, 1})
    yield Call(aten.chunk.default, (x, 3, 2), {}, {0, 1})
    yield Call(aten.slice_scatter.default, (x, tensor(2, 2, 6), 1, 0, 2, 1), {}, {0, 2})
    yield Call(aten.flip.default, (x, [1, -1]), {}, every)
    yield Call(aten.roll.default, (x, [dice.randint(-20, 20), 1], [1, 2]), {}, every)
    yield Call(aten.diff.default, (x, dice.randint(1, 2), 1), {}, every)
    yield Call(aten.glu.default, (x, -1), {}, {0, 1})
    yield Call(aten.topk.default, (x, 2, 1), {}, {0, 2})
    yield Call(aten.sort.default, (x, 1), {}, {0, 2})
    yield Call(aten.gather.default, (x, 1, torch.randint(rows, (2, 4, 6))), {}, every)
    yield Call(aten.index_select.default, (x, 1, torch.randint(rows, (5,))), {}, every)
    picked = [None, torch.randint(rows, (3, 4)), torch.randint(6, (4,))]
    yield Call(aten.index.Tensor, (x, picked), {}, every)


def products(dice: random.Random) -> Iterator[Call]:
    n, k, p = sizes(dice, 3, 2, 7)
    yield Call(aten.linear.default, (tensor(2, n, k), tensor(p, k), dice.choice([None, tensor(p)])), {}, {0, 1, 2})
    yield Call(aten.matmul.default, (tensor(3, 1, n, k), tensor(2, k, p)), {}, {0, 1, 2, 3})
    yield Call(aten.matmul.default, (tensor(3, n, k), tensor(k)), {}, {0, 1})
    yield Call(aten.mm.default, (tensor(n, k), tensor(k, p)), {}, {0, 1})
    yield Call(aten.bmm.default, (tensor(2, n, k), tensor(2, k, p)), {}, {0, 1, 2})
    yield Call(aten.addmm.default, (dice.choice([tensor(p), tensor(n, 1)]), tensor(n, k), tensor(k, p)), {}, {0, 1})
    yield Call(aten.baddbmm.default, (tensor(2, 1, p), tensor(2, n, k), tensor(2, k, p)), {}, {0, 1, 2})
    yield Call(aten.embedding.default, (tensor(9, 4), torch.randint(9, (2, n))), {}, {0, 1, 2})
    query, key, value = tensor(2, 3, n, 4), tensor(2, 3, p, 4), tensor(2, 3, p, 4)
    attention = aten.scaled_dot_product_attention.default
    yield Call(attention, (query, key, value), {}, {0, 1, 2})
    yield Call(attention, (query, key, value, tensor(n, p)), {"scale": 0.3}, {0, 1, 2})
    yield Call(attention, (query, key, value, tensor(2, 1, 1, p) > -9.0), {}, {0, 1, 2})
    yield Call(attention, (query, key, value, None, 0.0, True), {}, {0, 1, 2})


def norms(dice: random.Random) -> Iterator[Call]:
    x = tensor(3, 6, dice.randint(2, 6), 4)
    weight, bias, mean = tensor(6), tensor(6), tensor(6)
    deviations = tensor(6).abs() + 0.1
    everywhere = {0, 1, 2, 3}
    fixed = (x, weight, bias, mean, deviations, 0.1, 1e-5)
    yield Call(aten._native_batch_norm_legit_no_training.default, fixed, {}, everywhere)
    yield Call(aten.batch_norm.default, (x, weight, bias, mean, deviations, False, 0.1, 1e-5, False), {}, everywhere)
    yield Call(aten.layer_norm.default, (x, [4], tensor(4), None, 1e-5, False), {}, {0, 1, 2})
    yield Call(aten.native_layer_norm.default, (x, list(x.shape[2:]), None, None, 1e-5), {}, {0, 1})
    yield Call(aten.rms_norm.default, (x, [4], tensor(4)), {}, {0, 1, 2})
    yield Call(aten.group_norm.default, (x, 3, weight, bias, 1e-5, False), {}, {0})
    native = (x, weight, bias, 3, 6, x.shape[2] * 4, 2, 1e-5)
    yield Call(aten.native_group_norm.default, native, {}, {0})
    yield Call(aten.instance_norm.default, (x, weight, bias, None, None, True, 0.1, 1e-5, False), {}, {0, 1})
    for op in (aten.softmax.int, aten.log_softmax.int):
        yield Call(op, (x, dice.choice([1, -3])), {}, {0, 2, 3})


def reductions(dice: random.Random) -> Iterator[Call]:
    x = tensor(3, dice.randint(2, 6), 4)
    keep = dice.random() < 0.5
    rest = {0, 2} if keep else {0, 1}
    for op in (aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.logsumexp.default):
        yield Call(op, (x, [-2], keep), {}, rest)
    yield Call(aten.mean.dim, (x, None, True), {})
    yield Call(aten.var.correction, (x, [1]), {"correction": 1, "keepdim": keep}, rest)
    yield Call(aten.argmax.default, (x, 1, keep), {}, rest)
    yield Call(aten.max.dim, (x, 1, keep), {}, rest)
    yield Call(aten.any.dim, (x > 0, 1, keep), {}, rest)
    yield Call(aten.linalg_vector_norm.default, (x, 2, [1], keep), {}, rest)
    yield Call(aten.cumsum.default, (x, 1), {}, {0, 2})


FAMILIES: list[Callable[[random.Random], Iterator[Call]]] = [
    convolutions, transposed_convolutions, pools, adaptive_pools, resizes, borders, elements, views, parts, products,
    norms, reductions,
]  # fmt: skip
