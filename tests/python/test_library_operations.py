# SPDX-License-Identifier: Apache-2.0
"""Operations that are left to an island's library, which behaves as NCCL does, give the right values all the same."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import Ranks, device

GLOO = {"ATOLL_INNER": "cpu:gloo"}


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


JOBS = [fill_strided_in_a_region, gather_and_scatter_any_sizes]


@pytest.mark.parametrize("job", JOBS)
def test_in_one_island(one_island: Ranks, job: Any) -> None:
    one_island.run(job)
