# SPDX-License-Identifier: Apache-2.0
"""Coalescing regions in an island of devices: its library holds back all that a thread issues until they end, which an
error must not prevent."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import Ranks, device, group_of_library, raises


@pytest.fixture(scope="module")
def one_island_of_devices() -> Iterator[Ranks]:
    ranks = Ranks(2, ["A"] * 2, {}, ["sim"] * 2)
    yield ranks
    ranks.stop()


def add_up() -> None:
    tensor = torch.ones(5003, device=device())
    dist.all_reduce(tensor)
    assert tensor.eq(2).all().item(), tensor


def refuse_in_the_library(rank: int) -> None:
    """The library refuses the first of two operations, which Atoll has put into a region of their own."""
    group = group_of_library("sum", "bor")
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.BOR
    tensors = list(torch.ones(2, 3, dtype=torch.int32, device=device()))
    with raises(Exception, "SUM, AVG, PRODUCT, MIN and MAX, got BOR"):  # the later rank may hear of the other's error
        group.allreduce_coalesced(tensors, options)
    add_up()
    dist.destroy_process_group(group)


def leave_one_open(rank: int) -> None:
    """The group's next region begins what was left."""
    group, where = dist.new_group(), torch.device(device())
    first = torch.ones(3, device=where)
    group._start_coalescing(where)
    group.allreduce([first], dist.AllreduceOptions())
    group._start_coalescing(where)
    group._end_coalescing(where)
    add_up()
    assert first.eq(2).all().item(), first
    dist.destroy_process_group(group)


def average_after_a_sum(rank: int) -> None:
    """The library only adds: Atoll divides its sum, which therefore cannot be held back."""
    group, where = group_of_library("sum"), torch.device(device())
    total, mean = (torch.full((3,), rank + 1.0, device=where) for _ in range(2))
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    group._start_coalescing(where)
    group.allreduce([total], dist.AllreduceOptions())
    group.allreduce([mean], options)
    group._end_coalescing(where).wait()
    assert (total.tolist(), mean.tolist()) == ([3.0] * 3, [1.5] * 3)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("job", [refuse_in_the_library, leave_one_open, average_after_a_sum])
def test_regions_of_a_library(one_island_of_devices: Ranks, job: Any) -> None:
    one_island_of_devices.run(job)
