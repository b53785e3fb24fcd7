# SPDX-License-Identifier: Apache-2.0
"""Messages from device to device without a stop at the host, over UCX links between simulated devices, whose memory
UCX is given as the host addresses it. Whatever way messages take, they arrive unchanged."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fault_jobs import Job, Me
from support import Ranks, crossed, device
from ucx_ways import WAYS, over_ucx, skip_without_ucx

# Messages of up to 16 KiB travel at once, by way of the host; a ring has four chunks of 1 MiB.
SIZES = (16_385, 1 << 20, (1 << 20) + 1, 9_000_001)
DEATH_S = 2.0


@pytest.fixture(scope="module", autouse=True)
def ucx() -> None:
    skip_without_ucx()


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> list[str]:
    return str(request.param).split("-")


ENDS = ["sim-sim", "sim-cpu", "cpu-sim"]
every_way = pytest.mark.parametrize(("new_ranks", "ends"), crossed(WAYS, ENDS), indirect=True)


@pytest.fixture
def new_ranks(request: pytest.FixtureRequest) -> Iterator[Callable[..., Ranks]]:
    made: list[Ranks] = []

    def make(ends: list[str], **more: str) -> Ranks:
        ranks = Ranks(2, ["A", "B"], over_ucx(request.param, **more), ends)
        made.append(ranks)
        return ranks

    yield make
    for ranks in made:
        ranks.stop()


def meet(rank: int) -> None:
    """Opens the link; messages before that pass through the host."""
    token = torch.zeros(1)
    for sender in (0, 1):
        dist.send(token, 1 - rank) if rank == sender else dist.recv(token, 1 - rank)


def directly() -> int:
    """Returns how many messages of this rank have bypassed the host."""
    from atoll.backend import backend_of

    return backend_of().direct_messages()


def content(elements: int, seed: int) -> torch.Tensor:
    return (torch.arange(elements) * (2 * seed + 1) + seed).to(torch.uint8)


def swap(rank: int, mine: torch.Tensor, theirs: torch.Tensor, tag: int = 0) -> list[Any]:
    return [dist.isend(mine, 1 - rank, tag=tag), dist.irecv(theirs, 1 - rank, tag=tag)]


def finish(works: list[Any]) -> None:
    for work in works:
        work.wait()


def of_many_sizes(rank: int) -> int:
    meet(rank)
    for number, elements in enumerate(SIZES):
        theirs = torch.zeros(elements, dtype=torch.uint8, device=device())
        finish(swap(rank, content(elements, rank + number).to(device()), theirs))
        assert torch.equal(theirs.cpu(), content(elements, 1 - rank + number)), elements
    return directly()


@every_way
def test_both_ways_at_once(new_ranks: Callable[..., Ranks], ends: list[str]) -> None:
    # Messages of devices bypass the host; each counts for its sender and for its receiver.
    assert new_ranks(ends).run(of_many_sizes) == [len(SIZES) * ends.count("sim")] * 2


def many_at_once(rank: int) -> int:
    meet(rank)
    arrived = [torch.zeros(300_000, dtype=torch.float64, device=device()) for _ in range(12)]
    works = []
    for number, theirs in enumerate(arrived):
        mine = torch.full((300_000,), 10.0 * rank + number, dtype=torch.float64, device=device())
        works += swap(rank, mine, theirs, tag=number % 3)
        del mine  # later tensors must not get its memory before the message is sent
    finish(works)
    for number, theirs in enumerate(arrived):
        assert torch.equal(theirs.cpu(), torch.full_like(theirs, 10.0 * (1 - rank) + number, device="cpu")), number
    return directly()


@every_way
def test_many_at_once_of_several_tags(new_ranks: Callable[..., Ranks], ends: list[str]) -> None:
    assert new_ranks(ends).run(many_at_once) == [12 * ends.count("sim")] * 2


def after_a_busy_stream(rank: int) -> int:
    """A message contains what was computed before it was sent, and arrives after the work that was issued before it
    was received."""
    meet(rank)
    count = 1_000_000
    mine = torch.ones(count, dtype=torch.float64, device=device())
    theirs = torch.full((count,), 7.0, dtype=torch.float64, device=device())
    for _ in range(40):
        mine = mine + 1
    read = theirs.clone()
    for _ in range(40):
        read = read + theirs
    works = swap(rank, mine, theirs)
    finish(works)
    mine.zero_()  # wait() has ordered this stream after the message
    assert torch.equal(theirs.cpu(), torch.full((count,), 41.0, dtype=torch.float64))
    assert torch.equal(read.cpu(), torch.full((count,), 41 * 7.0, dtype=torch.float64))
    return directly()


@every_way
def test_order_on_the_callers_stream(new_ranks: Callable[..., Ranks], ends: list[str]) -> None:
    slow = {"ATOLL_SIM_SPEED": "0.2", "ATOLL_SIM_DELAY": "0.001"}
    assert new_ranks(ends, **slow).run(after_a_busy_stream) == [ends.count("sim")] * 2


def of_any_layout(rank: int) -> None:
    meet(rank)
    mine = content(1_200_000, rank).reshape(1000, 1200).to(device())
    theirs = torch.zeros(1200, 1000, dtype=torch.uint8, device=device())
    finish(swap(rank, mine.t(), theirs.t()[:, :]))
    assert torch.equal(theirs.cpu().t(), content(1_200_000, 1 - rank).reshape(1000, 1200).t().reshape(1000, 1200))
    if rank == 0:
        dist.send(mine, 1)
    else:
        assert dist.recv(theirs, None) == 0
        assert torch.equal(theirs.cpu().reshape(-1), content(1_200_000, 0))


@every_way
def test_of_any_layout_and_from_anybody(new_ranks: Callable[..., Ranks], ends: list[str]) -> None:
    new_ranks(ends).run(of_any_layout)


@every_way
def test_checked_data_passes_the_host(new_ranks: Callable[..., Ranks], ends: list[str]) -> None:
    assert new_ranks(ends, ATOLL_CHECK_DATA="1").run(of_many_sizes) == [0, 0]


def die_or_wait(me: Me) -> None:
    import atoll

    me.join()
    meet(me.rank)
    mine = torch.zeros(50_000_000, dtype=torch.uint8, device=atoll.device())
    theirs = torch.empty_like(mine)
    works = swap(me.rank, mine, theirs)
    finish(works)
    me.tell("running")
    while True:
        finish(swap(me.rank, mine, theirs))


@pytest.mark.parametrize("ways", WAYS)
def test_a_killed_peer_is_an_exception(tmp_path: Path, ways: str) -> None:
    with Job(tmp_path, die_or_wait, "AB", environment=over_ucx(ways, ATOLL_DEVICE="sim")) as job:
        job.wait_for("running")
        at = job.signal(1, signal.SIGKILL)
        failure = job.failures([0], at, DEATH_S)[0]
        assert "rank 1" in failure.text


def leave_amid(me: Me) -> None:
    import atoll

    me.join()
    meet(me.rank)
    theirs = torch.empty(50_000_000, dtype=torch.uint8, device=atoll.device())
    works = swap(me.rank, torch.zeros_like(theirs), theirs)
    me.tell("under way")
    if me.rank == 0:
        dist.destroy_process_group()
        return
    try:
        finish(works)
    except dist.DistNetworkError as error:
        assert "rank 0" in str(error)
    dist.destroy_process_group()


@pytest.mark.parametrize("ways", WAYS)
def test_a_group_that_is_left_amid_messages_ends(tmp_path: Path, ways: str) -> None:
    with Job(tmp_path, leave_amid, "AB", environment=over_ucx(ways, ATOLL_DEVICE="sim")) as job:
        job.wait_for("under way")
        job.wait_for("end")
        job.check_ends()
