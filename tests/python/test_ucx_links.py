# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages under torch.distributed over links of UCX, over shared memory and over TCP."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from support import Ranks
from ucx_ways import WAYS, over_ucx, skip_without_ucx

SIZES = (1, 1000, 70_001, 1_000_003)


@pytest.fixture(params=WAYS)
def ranks_over_ucx(request: pytest.FixtureRequest) -> Iterator[tuple[str, Ranks]]:
    skip_without_ucx()
    ranks = Ranks(2, environment=over_ucx(request.param))
    yield request.param, ranks
    ranks.stop()


def exchange(rank: int) -> str:
    """Checks sums, gathered values and messages of many sizes; returns the description of the link."""
    import atoll

    for elements in SIZES:
        numbers = torch.arange(elements, dtype=torch.float64)
        mine = numbers * (rank + 1)
        total = mine.clone()
        dist.all_reduce(total)
        assert torch.equal(total, numbers * 3)
        gathered = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(gathered, mine)
        assert torch.equal(gathered[0], numbers)
        assert torch.equal(gathered[1], numbers * 2)
        theirs = torch.empty_like(mine)
        if rank == 0:
            dist.send(mine, 1)
            dist.recv(theirs, 1)
        else:
            dist.recv(theirs, 0)
            dist.send(mine, 0)
        assert torch.equal(theirs, numbers * (2 - rank))
    return atoll.links()[1 - rank]


def test_collectives_and_messages_over_ucx(ranks_over_ucx: tuple[str, Ranks]) -> None:
    allowed, ranks = ranks_over_ucx
    for text in ranks.run(exchange):
        assert text.startswith("ucx "), text
        used = text.removeprefix("ucx ").partition(", beside ")[0].split()
        assert set(used) & set(WAYS[allowed]), text
        assert set(used) <= set(allowed.split(",")), text
