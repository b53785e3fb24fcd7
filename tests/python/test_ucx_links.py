# SPDX-License-Identifier: Apache-2.0
"""Collectives and messages under torch.distributed over links of UCX, over shared memory and over TCP."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from support import Ranks

ABSENT = ("this build of Atoll has no UCX", "ATOLL_TRANSPORT=ucx: UCX cannot be loaded")
ASKS_FOR_UCX = """
import torch.distributed as dist
dist.init_process_group("atoll", store=dist.HashStore(), rank=0, world_size=1)
"""
# What UCX may use, and what the link then says that it does.
WAYS = {"posix,sysv,cma,self": ("posix", "sysv"), "tcp,self": ("tcp",)}
SIZES = (1, 1000, 70_001, 1_000_003)


@pytest.fixture(scope="module")
def ucx() -> None:
    environment = {**os.environ, "ATOLL_TRANSPORT": "ucx"}
    done = subprocess.run(
        [sys.executable, "-c", "import atoll" + ASKS_FOR_UCX],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode and any(words in done.stderr for words in ABSENT):
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr


@pytest.fixture(params=WAYS)
def over_ucx(ucx: None, request: pytest.FixtureRequest) -> Iterator[tuple[str, Ranks]]:
    environment = {"ATOLL_TRANSPORT": "ucx", "ATOLL_ADDRESS": "127.0.0.1", "UCX_TLS": request.param}
    ranks = Ranks(2, environment=environment)
    yield request.param, ranks
    ranks.stop()


def exchange(rank: int) -> str:
    """Checks sums, what is gathered and messages of many sizes, and returns what the link is."""
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


def test_collectives_and_messages_over_ucx(over_ucx: tuple[str, Ranks]) -> None:
    allowed, ranks = over_ucx
    for text in ranks.run(exchange):
        assert text.startswith("ucx "), text
        used = text.removeprefix("ucx ").partition(", beside ")[0].split()
        assert set(used) & set(WAYS[allowed]), text
        assert set(used) <= set(allowed.split(",")), text
