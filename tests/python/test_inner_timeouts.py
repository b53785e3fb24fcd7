# SPDX-License-Identifier: Apache-2.0
"""An operation of a library on an accelerator ends at its own timeout, whether the group's is shorter or longer."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import Ranks, crossed, device

BYTES_PER_S = 1_000_000
SLOW_LINK = {"ATOLL_SIM_LINK": str(BYTES_PER_S)}
LAYOUTS = {"alone": ("AA", ["sim", "sim"]), "bridged": ("AAB", ["sim", "sim", "cpu"])}
LONG_S = 60.0


def broadcast(tensor: torch.Tensor, timeout_s: float) -> Any:
    """Broadcasts from the last rank, and so into another island if there is one."""
    options = dist.BroadcastOptions()
    options.rootRank = dist.get_world_size() - 1
    options.timeout = timedelta(seconds=timeout_s)
    return dist.group.WORLD.broadcast([tensor], options)


def broadcast_in_a_region(tensor: torch.Tensor, timeout_s: float) -> Any:
    """Broadcasts in one region with a small broadcast."""
    where = torch.device(device())
    dist.group.WORLD._start_coalescing(where)
    broadcast(torch.zeros(1, device=where), timeout_s)
    broadcast(tensor, timeout_s)
    return dist.group.WORLD._end_coalescing(where)


CALLS = [broadcast, broadcast_in_a_region]
Call = Callable[[torch.Tensor, float], Any]


def take(seconds: float, group_s: float, own_s: float, call: Call) -> str:
    """Runs a broadcast for which the library needs `seconds`; returns the error, or "" if it succeeds."""
    dist.group.WORLD._get_backend(torch.device(device())).set_timeout(timedelta(seconds=group_s))
    last = dist.get_world_size() - 1
    value = 7.0 if dist.get_rank() == last else 0.0
    tensor = torch.full((int(seconds * BYTES_PER_S) // 4,), value, device=device())
    try:
        work = call(tensor, own_s)
        work.wait()
        return "" if tensor.eq(7).all().item() else "wrong values"
    except dist.DistBackendError as error:
        return str(error)


def outlast_the_group(rank: int, call: Call) -> str:
    return take(0.8, group_s=0.2, own_s=LONG_S, call=call)


def end_before_the_group(rank: int, call: Call) -> str:
    return take(1.5, group_s=LONG_S, own_s=0.3, call=call)


@pytest.mark.parametrize(("call", "layout"), crossed(CALLS, LAYOUTS))
def test_a_longer_timeout_than_the_groups(layout: str, call: Call) -> None:
    islands, devices = LAYOUTS[layout]
    ranks = Ranks(len(devices), list(islands), SLOW_LINK, devices)
    try:
        assert ranks.run(outlast_the_group, call) == [""] * len(devices)
    finally:
        ranks.stop()


@pytest.mark.parametrize(("call", "layout"), crossed(CALLS, LAYOUTS))
def test_a_shorter_timeout_than_the_groups(layout: str, call: Call) -> None:
    islands, devices = LAYOUTS[layout]
    ranks = Ranks(len(devices), list(islands), SLOW_LINK, devices)
    try:
        first, second, *_ = ranks.run(end_before_the_group, call)
    finally:
        ranks.stop()
    assert "timed out" in first + second, (first, second)
    assert first, "it took longer than it might"
    assert second, "it took longer than it might"
