# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed over Atoll against expected results, for many dtypes, sizes and kinds of
tensors."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from support import Ranks

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
REDUCED = [*FLOATS, *INTEGERS, *NARROW, *COMPLEX, torch.bool]
MOVED = [*REDUCED, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fnuz, torch.complex32]
SIZES = [0, 1, 7, 1031, 70_001]


def values(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns small whole numbers that differ by rank and position, so that sums of a few are exact in every dtype."""
    pattern = (torch.arange(numel, dtype=torch.int64) * 7 + rank * 3) % 5
    if dtype is torch.bool:
        return (pattern % 2).to(dtype)
    if dtype.is_complex:
        return torch.complex(pattern.double(), (pattern + rank).double()).to(dtype)
    return pattern.to(torch.float32).to(dtype) if dtype.is_floating_point else pattern.to(dtype)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    view = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[found.element_size()]
    if found.numel():
        assert torch.equal(found.contiguous().reshape(-1).view(view), expected.contiguous().reshape(-1).view(view))


def wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def reduced(op: ReduceOp, size: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    stack = torch.stack([values(r, numel, dtype).to(wide(dtype)) for r in range(size)])
    if op == ReduceOp.SUM:
        result = stack.sum(0)
        return result.bool() if dtype is torch.bool else result.to(dtype)
    if op == ReduceOp.AVG:
        result = stack.sum(0)
        return (result / size if not dtype_is_whole(dtype) else result // size).to(dtype)
    if op == ReduceOp.PRODUCT:
        return stack.prod(0).to(dtype)
    return (stack.amin(0) if op == ReduceOp.MIN else stack.amax(0)).to(dtype)


def dtype_is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def check_all_reduce(rank: int, name: str) -> None:
    size = dist.get_world_size()
    op = getattr(ReduceOp, name)
    for dtype in REDUCED:
        if (name in ("PRODUCT", "MIN", "MAX") and dtype.is_complex) or (name == "AVG" and dtype is torch.bool):
            continue
        for numel in SIZES:
            tensor = values(rank, numel, dtype)
            dist.all_reduce(tensor, op)
            expected = reduced(op, size, numel, dtype)
            if name == "AVG":
                torch.testing.assert_close(tensor, expected)
            else:
                same(tensor, expected)


def check_bitwise(rank: int) -> None:
    size = dist.get_world_size()
    for op, function in ((ReduceOp.BAND, "__and__"), (ReduceOp.BOR, "__or__"), (ReduceOp.BXOR, "__xor__")):
        for dtype in (*INTEGERS, torch.bool):
            tensor = values(rank, 257, dtype)
            dist.all_reduce(tensor, op)
            expected = values(0, 257, dtype)
            for other in range(1, size):
                expected = getattr(expected, function)(values(other, 257, dtype))
            same(tensor, expected)


def check_premul_sum(rank: int) -> None:
    size = dist.get_world_size()
    for factor in (2.0, torch.tensor([0.5])):
        for dtype in FLOATS:
            tensor = values(rank, 301, dtype)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
            scaled = [values(r, 301, dtype).double() * float(factor) for r in range(size)]
            same(tensor, sum(scaled).to(dtype))


def check_reduce(rank: int) -> None:
    size = dist.get_world_size()
    for root in range(size):
        for dtype in REDUCED:
            tensor = values(rank, 1031, dtype)
            dist.reduce(tensor, root, ReduceOp.SUM)
            same(tensor, reduced(ReduceOp.SUM, size, 1031, dtype) if rank == root else values(rank, 1031, dtype))


def check_broadcast(rank: int) -> None:
    for root in range(dist.get_world_size()):
        for dtype in MOVED:
            for numel in SIZES:
                tensor = values(rank, numel, dtype)
                dist.broadcast(tensor, root)
                same(tensor, values(root, numel, dtype))


def check_all_gather(rank: int) -> None:
    size = dist.get_world_size()
    for dtype in MOVED:
        for numel in SIZES:
            expected = [values(r, numel, dtype) for r in range(size)]
            outputs = [torch.empty(numel, dtype=dtype) for _ in range(size)]
            dist.all_gather(outputs, expected[rank].clone())
            for output, wanted in zip(outputs, expected, strict=True):
                same(output, wanted)
            flat = torch.empty(size * numel, dtype=dtype)
            dist.all_gather_into_tensor(flat, expected[rank].clone())
            same(flat, torch.cat(expected))


def check_all_gather_uneven_and_in_place(rank: int) -> None:
    size = dist.get_world_size()
    buffer = torch.empty(sum(r * 3 for r in range(size)))
    outputs = list(buffer.split([r * 3 for r in range(size)]))
    dist.all_gather(outputs, values(rank, rank * 3, torch.float32))
    same(buffer, torch.cat([values(r, r * 3, torch.float32) for r in range(size)]))
    flat = torch.full((size * 5,), -1.0)
    flat[rank * 5 : rank * 5 + 5] = values(rank, 5, torch.float32)
    dist.all_gather_into_tensor(flat, flat[rank * 5 : rank * 5 + 5])
    same(flat, torch.cat([values(r, 5, torch.float32) for r in range(size)]))


def check_gather_and_scatter(rank: int) -> None:
    size = dist.get_world_size()
    for root in range(size):
        for dtype in MOVED:
            parts = [torch.empty(57, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(values(rank, 57, dtype), parts, dst=root)
            if parts is not None:
                for r, part in enumerate(parts):
                    same(part, values(r, 57, dtype))
            output = torch.empty(57, dtype=dtype)
            dist.scatter(output, parts, src=root)
            same(output, values(rank, 57, dtype))


def check_reduce_scatter(rank: int) -> None:
    size = dist.get_world_size()
    for dtype in REDUCED:
        numel = 331
        whole = reduced(ReduceOp.SUM, size, numel * size, dtype)
        mine = whole[rank * numel : (rank + 1) * numel]
        output = torch.empty(numel, dtype=dtype)
        dist.reduce_scatter_tensor(output, values(rank, numel * size, dtype))
        same(output, mine)
        dist.reduce_scatter(output.zero_(), list(values(rank, numel * size, dtype).split(numel)))
        same(output, mine)
    in_place = values(rank, 6 * size, torch.float32)
    dist.reduce_scatter_tensor(in_place[rank * 6 : rank * 6 + 6], in_place, ReduceOp.AVG)
    expected = reduced(ReduceOp.SUM, size, 6 * size, torch.float32)[rank * 6 : rank * 6 + 6] / size
    torch.testing.assert_close(in_place[rank * 6 : rank * 6 + 6], expected)


def check_reduce_scatter_uneven(rank: int) -> None:
    size = dist.get_world_size()
    parts = [values(rank, r * 4, torch.float64) for r in range(size)]
    output = torch.empty(rank * 4, dtype=torch.float64)
    dist.reduce_scatter(output, parts)
    same(output, reduced(ReduceOp.SUM, size, rank * 4, torch.float64))


def block(sender: int, receiver: int, dtype: torch.dtype) -> torch.Tensor:
    return values(sender * 2 + receiver, (sender + 2 * receiver) * 11, dtype)


def check_all_to_all(rank: int) -> None:
    size = dist.get_world_size()
    for dtype in MOVED:
        inputs = [block(rank, r, dtype) for r in range(size)]
        expected = [block(r, rank, dtype) for r in range(size)]
        outputs = [torch.empty_like(wanted) for wanted in expected]
        dist.all_to_all(outputs, inputs)
        for output, wanted in zip(outputs, expected, strict=True):
            same(output, wanted)
        flat = torch.empty(sum(len(wanted) for wanted in expected), dtype=dtype)
        dist.all_to_all_single(flat, torch.cat(inputs), [len(e) for e in expected], [len(i) for i in inputs])
        same(flat, torch.cat(expected))
    rows = values(rank, size * 6, torch.int64).reshape(size * 2, 3)
    result = torch.empty_like(rows)
    dist.all_to_all_single(result, rows)
    everyone = [values(r, size * 6, torch.int64).reshape(size, 2, 3)[rank] for r in range(size)]
    same(result, torch.cat(everyone))


def check_strided(rank: int) -> None:
    size = dist.get_world_size()
    total = sum(range(size))
    matrix = torch.zeros(6, 10)
    columns = matrix.t()[2:9:3]
    columns.fill_(rank)
    dist.all_reduce(columns)
    assert torch.equal(columns, torch.full_like(columns, total))
    assert matrix.sum() == total * columns.numel()  # nothing else was written
    image = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.broadcast(image, 0, async_op=True).wait()
    assert torch.equal(image, torch.zeros_like(image))
    outputs = [torch.zeros(4, 6)[:, ::2] for _ in range(size)]
    dist.all_gather(outputs, torch.full((3, 4), float(rank)).t())
    assert all((output == r).all() for r, output in enumerate(outputs))
    conjugate = torch.tensor([1 + 2j * (rank + 1)]).conj()
    gathered = [torch.empty(1, dtype=torch.complex64) for _ in range(size)]
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))  # torch.distributed itself refuses conjugate views
    backend.allgather([gathered], [conjugate]).wait()
    assert [g.item() for g in gathered] == [1 - 2j * (r + 1) for r in range(size)]


def check_scalars_and_leaves(rank: int) -> None:
    size = dist.get_world_size()
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.shape == ()
    assert scalar.item() == sum(range(size))
    leaf = torch.full((4, 4), float(rank), requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf.t()[1:3])
    assert leaf.sum().item() == 8 * sum(range(size)) + 8 * rank
    with torch.inference_mode():
        inferred = torch.full((4, 4), float(rank)).t()
        dist.all_reduce(inferred)
    assert (inferred == sum(range(size))).all()


def check_sparse(rank: int) -> None:
    size = dist.get_world_size()

    def mine(r: int, dtype: torch.dtype) -> torch.Tensor:
        indices = torch.arange(r + 1).repeat(2, 1)  # ranks hold different numbers of entries; some coincide
        return torch.sparse_coo_tensor(indices, torch.full((r + 1, 2), r + 1, dtype=dtype), (size, size, 2))

    for dtype in (torch.float32, torch.float64, torch.int64):
        tensor = mine(rank, dtype)
        dist.all_reduce(tensor)
        expected = sum(mine(r, dtype).to_dense() for r in range(size))
        assert tensor.is_coalesced()
        assert torch.equal(tensor.to_dense(), expected)
    empty = torch.sparse_coo_tensor(size=(3, 3))
    dist.all_reduce(empty)
    assert empty._nnz() == 0


def check_coalesced(rank: int) -> None:
    size = dist.get_world_size()
    tensors = [values(rank, n, dtype) for n, dtype in ((3, torch.float32), (0, torch.float32), (501, torch.float64))]
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend.allreduce_coalesced(tensors).wait()
    for tensor in tensors:
        same(tensor, reduced(ReduceOp.SUM, size, tensor.numel(), tensor.dtype))
    inputs = [values(rank, n, torch.float32) for n in (2, 9)]
    outputs = [[torch.empty_like(t) for t in inputs] for _ in range(size)]
    backend.allgather_coalesced(outputs, inputs).wait()
    for r, row in enumerate(outputs):
        for found, given in zip(row, inputs, strict=True):
            same(found, values(r, given.numel(), torch.float32))


CHECKS: list[Callable[..., None]] = [
    check_bitwise,
    check_premul_sum,
    check_reduce,
    check_broadcast,
    check_all_gather,
    check_all_gather_uneven_and_in_place,
    check_gather_and_scatter,
    check_reduce_scatter,
    check_reduce_scatter_uneven,
    check_all_to_all,
    check_strided,
    check_scalars_and_leaves,
    check_sparse,
    check_coalesced,
]


@pytest.mark.parametrize("name", ["SUM", "AVG", "PRODUCT", "MIN", "MAX"])
def test_all_reduce(any_ranks: Ranks, name: str) -> None:
    any_ranks.run(check_all_reduce, name)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_collective(any_ranks: Ranks, check: Callable[..., None]) -> None:
    any_ranks.run(check)
