# SPDX-License-Identifier: Apache-2.0
"""The contract: operations that reduce."""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from contract_layouts import Placed, layouts
from contract_member import COMPLEX, FLOATS, INTEGERS, REDUCED, Member, Op, folded, pattern, raw, short

SIZES = [(0,), (1,), (7,), (1031,)]
BITWISE = ("BAND", "BOR", "BXOR")


def combinations() -> Iterator[tuple[str, torch.dtype]]:
    """Returns every reduction with each dtype for which it is defined."""
    for dtype in REDUCED:
        yield "SUM", dtype
        if dtype is not torch.bool:
            yield "AVG", dtype
        if dtype not in COMPLEX:
            yield from ((name, dtype) for name in ("PRODUCT", "MIN", "MAX"))
        if dtype in INTEGERS or dtype is torch.bool:
            yield from ((name, dtype) for name in BITWISE)


def is_exact(name: str) -> bool:
    return name != "AVG"


def all_reduce(me: Member) -> None:
    for name, dtype in combinations():

        def check(name: str = name, dtype: torch.dtype = dtype) -> None:
            op = getattr(Op, name)
            for shape in SIZES:
                tensor = pattern(me.rank, shape, dtype).to(me.device)
                dist.all_reduce(tensor, op)
                me.expect(tensor, folded(op, [pattern(r, shape, dtype) for r in range(me.size)]), is_exact(name))

        me.case(f"{name} {short(dtype)}", check)


def all_reduce_premultiplied(me: Member) -> None:
    for factor in (2.0, torch.tensor([0.5])):
        for dtype in FLOATS:

            def check(factor: Any = factor, dtype: torch.dtype = dtype) -> None:
                tensor = pattern(me.rank, (301,), dtype).to(me.device)
                given = factor.to(me.device) if isinstance(factor, torch.Tensor) else factor
                dist.all_reduce(tensor, dist._make_nccl_premul_sum(given))
                scaled = [pattern(r, (301,), dtype).double() * float(factor) for r in range(me.size)]
                me.expect(tensor, folded(Op.SUM, scaled))

            me.case(f"{'tensor' if isinstance(factor, torch.Tensor) else 'number'} {short(dtype)}", check)


def all_reduce_layouts(me: Member) -> None:
    for layout, shape in layouts():
        for is_async in (False, True):

            def check(layout: str = layout, shape: tuple[int, ...] = shape, is_async: bool = is_async) -> None:
                placed = Placed(layout, pattern(me.rank, shape, torch.float32), me.device)
                work = dist.all_reduce(placed.tensor, async_op=is_async)
                if is_async:
                    work.wait()
                me.expect(placed.tensor, folded(Op.SUM, [pattern(r, shape, torch.float32) for r in range(me.size)]))
                me.check(placed.is_alone(), "something was written beside the tensor")

            me.case(f"{layout} {list(shape)}{', async' if is_async else ''}", check)


def reals(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(count, dtype=torch.float64, generator=generator).to(dtype)


def all_reduce_of_reals(me: Member) -> None:
    """Sums are within the bound for any order, with the same bits on all ranks and in every run."""
    for dtype in FLOATS:
        for count in (3, 1031, 100_003):

            def check(dtype: torch.dtype = dtype, count: int = count) -> None:
                parts = [reals(r, count, dtype) for r in range(me.size)]
                found = []
                for _ in range(2):
                    tensor = parts[me.rank].clone().to(me.device)
                    dist.all_reduce(tensor)
                    found.append(tensor.cpu())
                bound = me.size * torch.finfo(dtype).eps * sum(part.double().abs() for part in parts)
                off = (found[0].double() - folded(Op.SUM, parts)).abs()
                me.check(bool((off <= bound).all()), "beyond rounding")
                digests = [""] * me.size
                dist.all_gather_object(digests, hashlib.sha256(raw(found[0])).hexdigest())
                me.check(len(set(digests)) == 1, "ranks hold different bits")
                me.check(torch.equal(found[0], found[1]), "another run gave other bits")

            me.case(f"{short(dtype)} {count}", check)


def all_reduce_of_extremes(me: Member) -> None:
    """Sums of integers wrap; infinities, NaN and negative numbers are preserved."""

    def integers(dtype: torch.dtype) -> None:
        info = torch.iinfo(dtype)
        values = torch.tensor([info.max, info.min, info.max // 2, 5 if info.min == 0 else -5], dtype=dtype)
        for name in ("SUM", "MIN", "MAX"):
            tensor = (values // (me.rank + 1)).to(dtype).to(me.device)
            dist.all_reduce(tensor, getattr(Op, name))
            me.expect(tensor, folded(getattr(Op, name), [(values // (r + 1)).to(dtype) for r in range(me.size)]))

    def floats(dtype: torch.dtype) -> None:
        values = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -3.0]).to(dtype)
        tensor = (values if me.rank == 0 else torch.ones(5, dtype=dtype)).to(me.device)
        dist.all_reduce(tensor)
        found, rest = tensor.cpu().double(), me.size - 1
        assert found[0] == float("inf"), found
        assert found[1] == float("-inf"), found
        assert found[2].isnan(), found
        assert found[3:].tolist() == [rest, rest - 3], found

    for dtype in INTEGERS:
        me.case(short(dtype), lambda dtype=dtype: integers(dtype))
    for dtype in FLOATS:
        me.case(short(dtype), lambda dtype=dtype: floats(dtype))


def all_reduce_sparse(me: Member) -> None:
    def mine(r: int, dtype: torch.dtype) -> torch.Tensor:
        indices = torch.arange(r + 1).repeat(2, 1)  # ranks hold different numbers of entries; some coincide
        return torch.sparse_coo_tensor(indices, torch.full((r + 1, 2), r + 1, dtype=dtype), (me.size, me.size, 2))

    def check(dtype: torch.dtype) -> None:
        tensor = mine(me.rank, dtype)
        dist.all_reduce(tensor)
        expected = torch.stack([mine(r, dtype).to_dense() for r in range(me.size)]).sum(0)
        assert torch.equal(tensor.to_dense(), expected)

    for dtype in (torch.float32, torch.float64, torch.int64):
        me.case(short(dtype), lambda dtype=dtype: check(dtype))


def reduce(me: Member) -> None:
    def check(name: str, dtype: torch.dtype) -> None:
        op = getattr(Op, name)
        parts = [pattern(r, (131,), dtype) for r in range(me.size)]
        for root in range(me.size):
            tensor = parts[me.rank].clone().to(me.device)
            dist.reduce(tensor, root, op)
            if me.rank == root:
                me.expect(tensor, folded(op, parts), is_exact(name))

    for name, dtype in combinations():
        me.case(f"{name} {short(dtype)}", lambda name=name, dtype=dtype: check(name, dtype))


def reduce_leaves_other_tensors(me: Member) -> None:
    """Only the root's tensor changes."""

    def check(count: int) -> None:
        for root in range(me.size):
            tensor = pattern(me.rank, (count,), torch.float32).to(me.device)
            dist.reduce(tensor, root)
            if me.rank != root:
                me.expect(tensor, pattern(me.rank, (count,), torch.float32))

    for count in (7, 100_003):
        me.case(str(count), lambda count=count: check(count))


def reduce_scatter(me: Member) -> None:
    def check(name: str, dtype: torch.dtype, flat: bool) -> None:
        op = getattr(Op, name)
        for count in (0, 1, 331):
            parts = [pattern(r, (count * me.size,), dtype) for r in range(me.size)]
            output = torch.zeros(count, dtype=torch.float32).to(dtype).to(me.device)
            given = parts[me.rank].to(me.device)
            if flat:
                dist.reduce_scatter_tensor(output, given, op)
            else:
                dist.reduce_scatter(output, list(given.split(count)) if count else [given] * me.size, op)
            me.expect(output, folded(op, parts)[me.rank * count : (me.rank + 1) * count], is_exact(name))

    for name, dtype in combinations():
        me.case(f"{name} {short(dtype)}", lambda name=name, dtype=dtype: check(name, dtype, True))
    for name, dtype in (("SUM", torch.float32), ("MAX", torch.int64), ("SUM", torch.bfloat16)):
        me.case(f"lists, {name} {short(dtype)}", lambda name=name, dtype=dtype: check(name, dtype, False))


def reduce_scatter_forms(me: Member) -> None:
    def in_place() -> None:
        parts = [pattern(r, (6 * me.size,), torch.float32) for r in range(me.size)]
        whole = parts[me.rank].clone().to(me.device)
        mine = whole[me.rank * 6 : me.rank * 6 + 6]
        dist.reduce_scatter_tensor(mine, whole)
        me.expect(mine, folded(Op.SUM, parts)[me.rank * 6 : me.rank * 6 + 6])

    def uneven() -> None:
        sizes = [3 * r for r in range(me.size)]
        parts = [pattern(r, (sum(sizes),), torch.float64) for r in range(me.size)]
        output = torch.zeros(sizes[me.rank], dtype=torch.float64, device=me.device)
        dist.reduce_scatter(output, list(parts[me.rank].to(me.device).split(sizes)))
        me.expect(output, folded(Op.SUM, parts).split(sizes)[me.rank])

    def matrices() -> None:
        """Scatters along the first dimension, and into a tensor with gaps."""
        parts = [pattern(r, (2 * me.size, 3), torch.float32) for r in range(me.size)]
        placed = Placed("with gaps", torch.zeros(2, 3), me.device)
        dist.reduce_scatter(placed.tensor, list(parts[me.rank].to(me.device).split(2)))
        me.expect(placed.tensor, folded(Op.SUM, parts)[2 * me.rank : 2 * me.rank + 2])
        me.check(placed.is_alone(), "something was written beside the tensor")

    me.case("in place", in_place)
    me.case("uneven", uneven)
    me.case("with gaps", matrices)


PROPERTIES = [
    all_reduce, all_reduce_premultiplied, all_reduce_layouts, all_reduce_of_reals, all_reduce_of_extremes,
    all_reduce_sparse, reduce, reduce_leaves_other_tensors, reduce_scatter, reduce_scatter_forms,
]  # fmt: skip
