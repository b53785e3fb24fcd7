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


JOBS = [fill_strided_in_a_region]


@pytest.mark.parametrize("job", JOBS)
def test_in_one_island(one_island: Ranks, job: Any) -> None:
    one_island.run(job)
