# SPDX-License-Identifier: Apache-2.0
"""Threads of Atoll use the rank's device and no other, and end no capture of a graph by a thread of the program."""

import time

import pytest
import torch
import torch.distributed as dist

from support import Ranks

LAYOUTS = ["AA", "AB"]
SLOW = {"ATOLL_SIM_LINK": "2M", "ATOLL_SIM_BANDWIDTH": "2M"}  # bytes per second


def use_device_1(rank: int) -> list[int]:
    from atoll import _sim

    torch.accelerator.set_device_index(1)
    for count in (10, 1_000_000):
        tensor = torch.full((count,), float(rank + 1), device="sim")
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        more = work.get_future().then(lambda done: done.value()[0] + 1).wait()
        assert more.eq(4).all().item()
        dist.all_reduce(tensor)
        assert tensor.eq(6).all().item()
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        del tensor, work, more
    return _sim.used_devices()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_other_device_is_used(layout: str) -> None:
    """With CUDA each would cost hundreds of megabytes of that device's memory."""
    ranks = Ranks(2, list(layout), {"ATOLL_DEVICE": "sim:1"}, ["sim", "sim"])
    try:
        assert ranks.run(use_device_1) == [[1], [1]]
    finally:
        ranks.stop()


def capture_meanwhile(rank: int) -> None:
    from atoll import _sim

    tensor = torch.ones(100_000, device="sim")
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    _sim.pretend_capturing(True)
    try:
        while not work.is_completed():
            time.sleep(0.001)
    finally:
        _sim.pretend_capturing(False)  # raises if a thread has queried an event
    work.wait()
    assert tensor.eq(2).all().item()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_capture_goes_on_beside_operations(layout: str) -> None:
    ranks = Ranks(2, list(layout), SLOW, ["sim", "sim"])
    try:
        ranks.run(capture_meanwhile)
    finally:
        ranks.stop()
