# SPDX-License-Identifier: Apache-2.0
"""Operations that are left to an island's library, which behaves as NCCL does, give the right values all the same."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import Ranks, device

GLOO = {"ATOLL_INNER": "cpu:gloo"}
LACKED = (
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.float8_e4m3fn,
)


@pytest.fixture(params=["cpu", "sim"], scope="module")
def one_island(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    ranks = Ranks(3, ["A"] * 3, GLOO, [request.param] * 3)
    yield ranks
    ranks.stop()


def fill_strided_in_a_region(rank: int) -> None:
    """Strided results of a region are there after it, whether its operations are synchronous or not."""
    size, where = dist.get_world_size(), torch.device(device())
    for later in (True, False):
        options = dist.AllreduceOptions()
        options.asyncOp = later
        tensor = torch.full((40, 30), float(rank), device=where).t()
        dist.group.WORLD._start_coalescing(where)
        dist.group.WORLD.allreduce([tensor], options)
        dist.group.WORLD._end_coalescing(where).wait()
        assert tensor.eq(sum(range(size))).all().item(), (later, tensor)


def gather_and_scatter_any_sizes(rank: int) -> None:
    """Sizes differ by rank and shapes differ at the root, which is the only rank that knows of both."""
    size = dist.get_world_size()
    counts = [2 * 5003 * (each % 3) for each in range(size)]
    parts = [torch.arange(count, dtype=torch.float32) + each for each, count in enumerate(counts)]
    for root in range(size):
        rooms = [torch.zeros(2, count // 2, device=device()) for count in counts]
        dist.gather(parts[rank].to(device()), rooms if rank == root else None, root)
        for room, part in zip(rooms, parts, strict=True):
            assert torch.equal(room.cpu().view(-1), part) or rank != root, (root, room)
        mine = torch.zeros(2, counts[rank] // 2, device=device())
        dist.scatter(mine, [part.to(device()) for part in parts] if rank == root else None, root)
        assert torch.equal(mine.cpu().view(-1), parts[rank]), (root, mine)
        whole = torch.arange(7.0, device=device()) + torch.zeros(size, 1, device=device())
        dist.gather(whole[rank], list(whole) if rank == root else None, root)  # in place
        assert whole.cpu().eq(torch.arange(7.0)).all()


def of_rank(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a row for each rank, in which every byte is 0 or 1."""
    generator = torch.Generator().manual_seed(rank)
    shape = (dist.get_world_size(), 3, dtype.itemsize)
    return torch.randint(0, 2, shape, dtype=torch.uint8, generator=generator).view(dtype).squeeze(-1)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(found.cpu().view(torch.uint8), wanted.view(torch.uint8))


def move_dtypes_that_libraries_lack(rank: int) -> None:
    size, where = dist.get_world_size(), dist.group.WORLD
    for dtype in LACKED:
        everything = [of_rank(each, dtype) for each in range(size)]
        mine = everything[rank].to(device())

        whole = mine.clone()
        where.broadcast(whole, 1).wait()
        assert same(whole, everything[1]), ("broadcast", dtype)

        lists = [torch.empty_like(mine) for _ in range(size)]
        where.allgather(lists, mine).wait()
        assert all(map(same, lists, everything)), ("all_gather", dtype)

        dist.gather(mine[1], [each[0] for each in lists] if rank == 0 else None, 0)
        assert rank != 0 or all(same(lists[each][0], everything[each][1]) for each in range(size)), ("gather", dtype)
        dist.scatter(whole[0], list(mine) if rank == 2 else None, 2)
        assert same(whole[0], everything[2][rank]), ("scatter", dtype)

        crossed = [each[rank] for each in everything]
        dist.all_to_all_single(whole, mine)
        assert all(map(same, whole, crossed)), ("all_to_all_single", dtype)
        rows = [torch.empty_like(row) for row in mine]
        dist.all_to_all(rows, list(mine))
        assert all(map(same, rows, crossed)), ("all_to_all", dtype)

        works = [dist.isend(mine, (rank + 1) % size), dist.irecv(whole, (rank - 1) % size)]
        for work in works:
            work.wait()
        assert same(whole, everything[rank - 1]), ("message", dtype)


def block_the_stream(rank: int) -> None:
    tensor = torch.full((50_003,), float(rank), device=device())
    dist.all_reduce(tensor, async_op=True).block_current_stream()
    assert tensor.eq(sum(range(dist.get_world_size()))).all().item()


JOBS = [fill_strided_in_a_region, gather_and_scatter_any_sizes, move_dtypes_that_libraries_lack, block_the_stream]


@pytest.mark.parametrize("job", JOBS)
def test_in_one_island(one_island: Ranks, job: Any) -> None:
    one_island.run(job)


def test_a_stream_waits_for_other_islands() -> None:
    ranks = Ranks(2, ["A", "B"], {}, ["sim", "cpu"])
    try:
        ranks.run(block_the_stream)
    finally:
        ranks.stop()


def wait_for_the_future_of_a_region(rank: int) -> None:
    """The message of two ranks arrives on another stream than the sum of all, and later."""
    group, where = dist.group.WORLD, torch.device(device())
    total, message = torch.ones(3, device=where), torch.full((200_000,), 7.0 if rank == 0 else 0.0, device=where)
    group._start_coalescing(where)
    group.allreduce([total], dist.AllreduceOptions())
    if rank == 0:
        group.send([message], 1, 0)
    elif rank == 1:
        group.recv([message], 0, 0)
    group._end_coalescing(where).get_future().wait()
    assert total.eq(3).all().item(), total
    assert rank == 2 or message.eq(7).all().item(), message


def test_a_future_waits_for_all_of_its_region() -> None:
    ranks = Ranks(3, ["A", "A", "B"], {"ATOLL_SIM_LINK": "1M"}, ["sim", "sim", "cpu"])
    try:
        ranks.run(wait_for_the_future_of_a_region)
    finally:
        ranks.stop()
