# SPDX-License-Identifier: Apache-2.0
"""Several groups at once, features that torch.distributed builds on collectives, and the properties of a group."""

import copy
import os
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll._newer_torch import group_in_order
from support import Ranks, raises


def check_subgroups(rank: int) -> None:
    size = dist.get_world_size()
    last = dist.new_group(list(range(1, size)))
    pair = dist.new_group([0, size - 1])
    alone = [dist.new_group([r]) for r in range(size)]
    works = []
    for i in range(20):  # interleaved, and in different orders of groups on different ranks
        calls = []
        if rank >= 1:
            calls.append((last, size - 1, torch.full((50,), float(i))))
        if rank in (0, size - 1):
            calls.append((pair, len({0, size - 1}), torch.full((70_000,), float(i))))
        calls.append((dist.group.WORLD, size, torch.full((10,), float(i))))
        for group, members, tensor in calls if rank % 2 else reversed(calls):
            works.append((dist.all_reduce(tensor, group=group, async_op=True), members * float(i), tensor))
    for work, expected, tensor in works:
        work.wait()
        assert (tensor == expected).all()
    one = torch.ones(3)
    dist.all_reduce(one, group=alone[rank])
    assert (one == 1).all()
    for group in (*alone, pair, last):
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    with raises((ValueError, RuntimeError), ""):
        dist.all_reduce(one, group=alone[rank])


def check_reversed_ranks(rank: int) -> None:
    size = dist.get_world_size()
    group = group_in_order(list(reversed(range(size))))
    assert dist.get_group_rank(group, rank) == size - 1 - rank
    tensor = torch.full((4,), float(rank))
    dist.broadcast(tensor, src=size - 1, group=group)
    assert (tensor == size - 1).all()
    dist.destroy_process_group(group)


def check_objects(rank: int) -> None:
    size = dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (10 * rank), "tensor": torch.full((rank,), 1.0)}
    everyone = [None] * size
    dist.all_gather_object(everyone, mine)
    assert [found["rank"] for found in everyone] == list(range(size))
    objects = [mine, rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects[1] == 0
    received = [None]
    dist.scatter_object_list(received, [f"for {r}" for r in range(size)] if rank == 1 else None, src=1)
    assert received == [f"for {rank}"]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(mine["text"], gathered, dst=0)
    assert rank or gathered == ["x" * (10 * r) for r in range(size)]
    if rank == 0:
        dist.send_object_list([{"a": 1}, None], dst=1)
    elif rank == 1:
        into = [None, 5]
        dist.recv_object_list(into, src=0)
        assert into == [{"a": 1}, None]


def check_functional(rank: int) -> None:
    size = dist.get_world_size()
    group = dist.group.WORLD
    mine = torch.full((4,), float(rank))
    assert (functional.all_reduce(mine, "sum", group) == sum(range(size))).all()
    assert (mine == rank).all()  # functional: the input does not change
    assert (functional.all_reduce(mine, "avg", group) == sum(range(size)) / size).all()
    gathered = functional.all_gather_tensor(mine, 0, group)
    assert torch.equal(gathered, torch.arange(float(size)).repeat_interleave(4))
    scattered = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, group)
    assert (scattered == size).all()
    exchanged = functional.all_to_all_single(torch.full((size,), float(rank)), [1] * size, [1] * size, group)
    assert torch.equal(exchanged + 0, torch.arange(float(size)))
    both = functional.all_reduce_coalesced([mine, mine + 1], "sum", group)
    assert (both[1] == sum(range(size)) + size).all()
    assert (functional.broadcast(mine, 0, group) == 0).all()


def check_ddp(rank: int) -> None:
    size = dist.get_world_size()
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)).double()
    alone = copy.deepcopy(net)
    parallel = DistributedDataParallel(net, bucket_cap_mb=0.001)
    inputs = torch.randn(size * 4, 12, dtype=torch.float64)
    for model, part in ((parallel, inputs[rank * 4 : rank * 4 + 4]), (alone, inputs)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            model(part).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def check_split(rank: int) -> None:
    """Does what split_group does after its check for an accelerator."""
    size = dist.get_world_size()
    parent = atoll.backend.backend_of()
    assert parent.supports_splitting
    options = copy.deepcopy(parent.options)
    assert isinstance(options, atoll.Options)
    assert options is not parent.options
    assert options._timeout == parent.options._timeout
    child = dist.group.WORLD.split_group([0, size - 1], group_name=f"child {os.environ['WORLD_SIZE']}")
    if rank not in (0, size - 1):
        assert child is None
        return
    tensor = torch.ones(5)
    child.allreduce([tensor]).wait()
    assert (tensor == 2).all()
    child.shutdown()


def check_questions(rank: int) -> None:
    size = dist.get_world_size()
    dist.all_reduce(torch.ones(100_000))
    assert dist.get_backend() == "atoll"
    label = os.environ.get("ATOLL_ISLAND")
    islands = atoll.islands()
    assert sorted(r for _, ranks in islands for r in ranks) == list(range(size))
    if label:
        assert [name for name, _ in islands] == ["A", "B"]
        assert dict(islands)["A"] == [0, 2]
    else:
        assert len(islands) == 1
        assert islands[0][0].startswith("cpu@")
    links = atoll.links()
    assert links
    assert all(how == "shm" for how in links.values())
    split = atoll.time_split()
    assert split["operations"] > 0
    assert split["total_s"] > 0
    assert abs(split["total_s"] - split["inside_s"] - split["bridge_s"]) < 1e-9
    assert (split["bytes_bridge"] > 0) == bool(label)
    report = atoll.dump()
    assert report["rank"] == rank
    assert report["operations"]
    for operation in (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all_to_all",
    ):
        atoll.training.print_schedule(None, operation, 6 * size)
    with raises(ValueError, "is not a collective"):
        atoll.training.print_schedule(None, "all_redouce", 6)


def check_monitored_barrier(rank: int) -> None:
    for _ in range(3):
        atoll.monitored_barrier(timeout=timedelta(seconds=30))
    group = dist.new_group()
    dist.barrier()
    if rank == 1:
        dist.barrier()
        return
    with raises(dist.DistBackendError, "rank 1" if rank == 0 else ""):
        atoll.monitored_barrier(group, timedelta(seconds=2), wait_all_ranks=True)
    dist.barrier()


CHECKS: list[Callable[..., None]] = [
    check_subgroups,
    check_reversed_ranks,
    check_objects,
    check_functional,
    check_ddp,
    check_split,
    check_questions,
    check_monitored_barrier,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_group(any_ranks: Ranks, check: Callable[..., None]) -> None:
    any_ranks.run(check)
