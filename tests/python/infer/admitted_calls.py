# SPDX-License-Identifier: Apache-2.0
"""Calls of operators that a server admits and that are not in operator_calls."""

import random
from collections.abc import Iterator
from typing import Any

import torch

from one_node import Call
from operator_calls import FAMILIES, sizes

aten = torch.ops.aten
SAME = ("acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 reciprocal rsqrt "
        "sigmoid sin sinh sqrt tan tanh silu mish hardswish hardsigmoid relu6 selu log_sigmoid frac abs ceil floor neg "
        "relu round sign square trunc isnan isinf isfinite logical_not alias detach lift_fresh_copy")  # fmt: skip
NUMBERED = {"leaky_relu": 1, "celu": 1, "hardshrink": 1, "softshrink": 1, "hardtanh": 2, "softplus": 2, "threshold": 2,
            "elu": 3}  # fmt: skip


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def whole(*shape: int, high: int = 5) -> torch.Tensor:
    return torch.randint(high, shape)


def truth(*shape: int) -> torch.Tensor:
    return torch.randint(2, shape) > 0


def unary(dice: random.Random) -> Iterator[Call]:
    for name in SAME.split():
        yield Call(getattr(aten, name).default, (real(3, 4),))
    for name, count in NUMBERED.items():
        yield Call(getattr(aten, name).default, (real(3, 4), *[0.5, 1.5, 1.0][:count]))
    yield Call(aten.exp.default, (whole(4),))
    yield Call(aten.bitwise_not.default, (whole(4),))
    yield Call(aten.gelu.default, (real(4),), {"approximate": dice.choice(["none", "tanh"])})
    yield Call(aten.nan_to_num.default, (real(4), 0.0, None, 1.0))
    yield Call(aten.prelu.default, (real(2, 4, 3), real(dice.choice([1, 4]))))
    yield Call(aten.clone.default, (real(1, 2, 3, 4),), {"memory_format": torch.channels_last})
    yield Call(aten.contiguous.default, (real(3),), {"memory_format": torch.contiguous_format})
    yield Call(aten._to_copy.default, (real(3, 2),), {"dtype": dice.choice([torch.float64, torch.int32, torch.bool])})
    yield Call(aten.to.dtype, (whole(3), torch.float16))
    yield Call(aten.copy.default, (real(3, 4), whole(4)))
    yield Call(aten.dropout.default, (real(3), 0.5, False))
    yield Call(aten.fill.Scalar, (real(3), 2))
    yield Call(aten.fill.Tensor, (real(3), real()))


def arithmetic(dice: random.Random) -> Iterator[Call]:
    x, row, counts = real(3, 4), real(4), whole(4)
    number: Any = dice.choice([2, 1.5])
    for name in ("add", "sub", "rsub"):
        op = getattr(aten, name)
        yield Call(op.Tensor, (x, dice.choice([row, counts])), {"alpha": 2})
        yield Call(op.Scalar, (counts, number, 1))
    yield Call(aten.add.Tensor, (counts, number))
    for name in ("mul", "div", "remainder", "fmod"):
        op = getattr(aten, name)
        yield Call(op.Tensor, (x, row))
        yield Call(op.Scalar, (dice.choice([x, counts]), number))
    yield Call(aten.div.Tensor_mode, (x, row), {"rounding_mode": dice.choice([None, "trunc"])})
    yield Call(aten.div.Scalar_mode, (counts, 2), {"rounding_mode": "floor"})
    yield Call(aten.floor_divide.default, (x, row))
    yield Call(aten.floor_divide.Scalar, (counts, 3))
    yield Call(aten.pow.Tensor_Scalar, (dice.choice([x, counts]), 2))
    yield Call(aten.pow.Tensor_Tensor, (x.abs(), row))
    yield Call(aten.pow.Scalar, (2.0, x))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield Call(getattr(aten, name).Tensor, (x, counts))
        yield Call(getattr(aten, name).Scalar, (counts, number))
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__"):
        yield Call(getattr(aten, name).Tensor, (counts, truth(3, 4)))
        yield Call(getattr(aten, name).Scalar, (counts, 3))
    for name in ("logical_and", "logical_or", "logical_xor"):
        yield Call(getattr(aten, name).default, (x, counts))
    for op in (aten.maximum.default, aten.minimum.default, aten.max.other, aten.min.other):
        yield Call(op, (x, counts))
    yield Call(aten.atan2.default, (x, counts))


def choices(dice: random.Random) -> Iterator[Call]:
    x, row = real(3, 4), real(4)
    yield Call(aten.where.self, (truth(3, 1), x, whole(4)))
    yield Call(aten.where.ScalarSelf, (truth(4), 2, x))
    yield Call(aten.where.ScalarOther, (truth(4), whole(4), 1.5))
    yield Call(aten.where.Scalar, (truth(4), dice.choice([1, True]), dice.choice([0, 2.5])))
    yield Call(aten.masked_fill.Scalar, (x, truth(4), float("-inf")))
    yield Call(aten.masked_fill.Tensor, (x, truth(3, 1), real()))
    yield Call(aten.clamp.default, (x, None, 1))
    yield Call(aten.clamp.Tensor, (x, row, None))
    yield Call(aten.clamp_min.default, (whole(4), 2))
    yield Call(aten.clamp_max.default, (x, 2))
    yield Call(aten.clamp_min.Tensor, (x, row))
    yield Call(aten.clamp_max.Tensor, (x, row))
    yield Call(aten.addcmul.default, (x, row, real(3, 1)), {"value": 2})
    yield Call(aten.addcdiv.default, (x, row, real(3, 1)), {"value": 0.5})
    yield Call(aten.lerp.Scalar, (x, row, 0.5))


def windows(dice: random.Random) -> Iterator[Call]:
    image = real(2, 4, 9, 8)
    yield Call(aten.im2col.default, (image, [2, 3], [1, 2], [1, 0], [2, 1]))
    for op in (aten.adaptive_max_pool1d, aten.adaptive_max_pool3d):
        spatial = 1 if op is aten.adaptive_max_pool1d else 3
        yield Call(op.default, (real(2, 3, *sizes(dice, spatial, 2, 6)), sizes(dice, spatial, 1, 4)))
    yield Call(aten._adaptive_avg_pool2d.default, (image, [3, 2]))
    yield Call(aten._adaptive_avg_pool3d.default, (real(1, 2, 4, 5, 6), [2, 1, 3]))
    yield Call(aten.max_pool3d_with_indices.default, (real(1, 2, 4, 5, 6), [2, 2, 2], [], [1, 0, 1]))
    if hasattr(aten, "max_pool1d_with_indices"):
        yield Call(aten.max_pool1d_with_indices.default, (real(2, 3, 9), [3], [2], [1]))
    for spatial in (1, 2, 3):
        x = real(1, 2, *sizes(dice, spatial, 3, 6))
        rows = [2 * n for n in x.shape[2:]]
        for name in ("upsample_nearest", "_upsample_nearest_exact"):
            yield Call(getattr(aten, f"{name}{spatial}d").default, (x, rows, *dice.choice([[], [2.0] * spatial])))
        smooth = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"][spatial - 1]
        for name in (smooth, "upsample_bicubic2d") if spatial == 2 else (smooth,):
            yield Call(getattr(aten, name).default, (x, rows, dice.random() < 0.5))
            yield Call(getattr(aten, name).vec, (x, None, False, [1.5] * spatial))
        yield Call(getattr(aten, f"reflection_pad{spatial}d").default, (x, sizes(dice, 2 * spatial, 0, 2)))
        yield Call(getattr(aten, f"replication_pad{spatial}d").default, (x, sizes(dice, 2 * spatial, 0, 7)))
    yield Call(aten.pad.default, (image, [1, 2, 3, 0], "circular"))


def views(dice: random.Random) -> Iterator[Call]:
    x = real(2, 3, 4)
    yield Call(aten.movedim.int, (x, 0, -1))
    yield Call(aten.squeeze.default, (real(1, 3, 1),))
    yield Call(aten.broadcast_to.default, (real(3, 1), [2, 3, 4]))
    yield Call(aten.unfold.default, (x, 2, 2, dice.randint(1, 2)))
    yield Call(aten.select_scatter.default, (x, real(2, 4), 1, -1))
    yield Call(aten.split.sizes, (x, [1, 2], 1))
    yield Call(aten.repeat_interleave.self_int, (x, 2, dice.randint(0, 2)))
    yield Call(aten.meshgrid.default, ([real(2), real(3)],))
    yield Call(aten.meshgrid.indexing, ([real(2), real(3), real(4)],), {"indexing": dice.choice(["ij", "xy"])})
    yield Call(aten.triu.default, (x, 1))
    yield Call(aten.tril.default, (x, -1))
    yield Call(aten.argsort.default, (x, dice.randint(0, 2), True))
    yield Call(aten.sort.stable, (x,), {"stable": True, "dim": 1})
    yield Call(aten.argsort.stable, (x,), {"stable": True, "dim": 1})
    yield Call(aten.index.Tensor, (x, [whole(5, high=2), None, whole(1, high=4)]))


def makers(dice: random.Random) -> Iterator[Call]:
    x = real(2, 3)
    yield Call(aten.full.default, ([2, 3], dice.choice([1, 2.5, True])))
    yield Call(aten.full_like.default, (x, 2), {"dtype": dice.choice([None, torch.int64])})
    yield Call(aten.new_full.default, (x, [4], 1.5))
    for name in ("zeros", "ones"):
        yield Call(getattr(aten, name).default, ([2, 0, 3],), {"dtype": dice.choice([None, torch.int8])})
        yield Call(getattr(aten, name + "_like").default, (x,))
        yield Call(getattr(aten, "new_" + name).default, (x, [3]))
    yield Call(aten.scalar_tensor.default, (dice.choice([2, 1.5]),), {"dtype": torch.float64})
    yield Call(aten.arange.default, (dice.choice([7, 6.5]),))
    yield Call(aten.arange.start, (2, dice.choice([9, 8.5])))
    yield Call(aten.arange.start_step, (9, 2, -3))
    yield Call(aten.linspace.default, (0.0, 2.0, 5))


def reductions(dice: random.Random) -> Iterator[Call]:
    x, counts = real(3, 4, 5), whole(3, 4)
    keep = dice.random() < 0.5
    for op in (aten.sum, aten.mean, aten.prod, aten.max, aten.min, aten.any, aten.all):
        yield Call(op.default, (x,))
    yield Call(aten.sum.dim_IntList, (counts, [0], keep))
    yield Call(aten.sum.default, (truth(3),), {"dtype": torch.float32})
    yield Call(aten.prod.dim_int, (counts, 1, keep))
    yield Call(aten.amin.default, (counts, [0, -1], keep))
    for op in (aten.max, aten.min, aten.any, aten.all):
        yield Call(op.dim, (dice.choice([x, x > 0]), 1, keep))
    for op in (aten.any, aten.all):
        yield Call(op.dims, (counts.to(torch.uint8), dice.choice([None, [0]]), keep))
    yield Call(aten.argmin.default, (x, dice.choice([None, 1]), keep))
    for op in (aten.var, aten.std):
        yield Call(op.dim, (x, [1], dice.random() < 0.5, keep))
        yield Call(op.correction, (x, [0, 2]), {"correction": 0, "keepdim": keep})
    yield Call(aten.var_mean.correction, (x, None), {"correction": 1})
    yield Call(aten.linalg_vector_norm.default, (x, 1, None, keep))
    yield Call(aten.cumprod.default, (counts, 1))
    yield Call(aten.cumsum.default, (x, 0), {"dtype": torch.float64})
    for op in (aten.softmax.int, aten.log_softmax.int, aten._safe_softmax.default):
        yield Call(op, (dice.choice([x, counts]), -1, torch.float64))
    for op in (aten._softmax.default, aten._log_softmax.default):
        yield Call(op, (x, 1, False))


def layers(dice: random.Random) -> Iterator[Call]:
    yield Call(aten.einsum.default, ("bij,bjk->bik", [real(2, 3, 4), real(2, 4, 5)]))
    yield Call(aten.einsum.default, ("ij->ji", [real(2, 3)]))
    x = real(2, 3, 4, 5)
    yield Call(aten.instance_norm.default, (x, real(3), None, real(3), real(3).abs(), False, 0.1, 1e-5, True))
    yield Call(aten.rms_norm.default, (x, [5], real(5), 1e-6))
    query, key = real(2, 6, 7, 4), real(2, 3, 5, 4)
    shared = {"enable_gqa": True}
    yield Call(aten.scaled_dot_product_attention.default, (query, key, real(2, 3, 5, 4)), shared)
    ways, layers_made, hidden = dice.choice([1, 2]), dice.choice([1, 2]), 5
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        weights = []
        for layer in range(layers_made):
            inside = 6 if layer == 0 else hidden * ways
            weights += [real(gates * hidden, inside), real(gates * hidden, hidden), real(gates * hidden),
                        real(gates * hidden)] * ways  # fmt: skip
        states = [real(layers_made * ways, 2, hidden) for _ in range(2 if name == "lstm" else 1)]
        state = states if name == "lstm" else states[0]
        rest = (True, layers_made, 0.0, False, ways == 2, True)
        yield Call(getattr(aten, name).input, (real(2, 7, 6), state, weights, *rest))


ALL = [*FAMILIES, unary, arithmetic, choices, windows, views, makers, reductions, layers]
