# SPDX-License-Identifier: Apache-2.0
"""Ranks of an island issue everything to their library in the same order. On a device that runs one operation at a
time, as simulated ones do in tests (ATOLL_SIM_SERIAL), any other order would hang."""

import random
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import Ranks, device, later

LAYOUTS = [("AABB", ["sim"] * 4), ("AAB", ["sim", "sim", "cpu"]), ("ABAA", ["sim"] * 4)]
CHUNK = (2 << 20) // 4  # elements


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout[0], scope="module")
def islands(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    labels, devices = request.param
    ranks = Ranks(len(devices), list(labels), {"ATOLL_SIM_DELAY": "0.002"}, devices)
    yield ranks
    ranks.stop()


def many_at_once(rank: int, seed: int) -> None:
    """Chunks of many operations are brought to the bridge and taken back at the same time, at each rank's own pace."""
    pace = random.Random(seed * 100 + rank)
    size = dist.get_world_size()
    tensors, works = [], []
    for step in range(12):
        tensors.append(torch.full((random.Random(seed + step).choice([10, CHUNK, 5 * CHUNK + 3]),), float(rank + step)))
        tensors[-1] = tensors[-1].to(device())
        works.append(dist.all_reduce(tensors[-1], async_op=True))
        if pace.random() < 0.3:
            time.sleep(pace.random() * 0.01)
        if pace.random() < 0.3:
            works[pace.randrange(len(works))].wait()
    for step, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
        work.wait()
        expected = float(sum(range(size)) + size * step)
        assert tensor.eq(expected).all().item(), (step, tensor[:3], expected)


@pytest.mark.parametrize("seed", [0, later(1), later(2)])
def test_pieces_in_both_directions(islands: Ranks, seed: int) -> None:
    islands.run(many_at_once, seed)


def merged(pace: random.Random, first: list[Any], second: list[Any]) -> list[Any]:
    """Merges two lists at random, keeping the order of each."""
    order = [True] * len(first) + [False] * len(second)
    pace.shuffle(order)
    rest = iter(first), iter(second)
    return [next(rest[0] if of_first else rest[1]) for of_first in order]


def beside_messages(rank: int, seed: int) -> None:
    """Messages between two ranks, single and in batches, between collectives, mixed differently on each rank."""
    pace = random.Random(seed * 100 + rank)
    size = dist.get_world_size()
    peers = [other for other in range(size) if other != rank]
    outgoing = {peer: torch.full((70_000,), float(rank * 10 + peer)).to(device()) for peer in peers}
    incoming = {peer: torch.zeros(70_000).to(device()) for peer in peers}
    summed = [torch.full((CHUNK + 5,), float(rank + step)).to(device()) for step in range(4)]
    gathered = [torch.zeros(size * 1000).to(device()) for _ in range(4)]
    mine = torch.full((1000,), float(rank)).to(device())
    messages = [(name, peer) for peer in peers for name in ("send", "recv")]
    pace.shuffle(messages)
    steps = merged(pace, messages, [(name, step) for step in range(4) for name in ("sum", "gather")])
    works = []
    batch = {peer: torch.zeros(500).to(device()) for peer in peers}
    for name, number in steps:
        if name == "send":
            works.append(dist.isend(outgoing[number], number))
        elif name == "recv":
            works.append(dist.irecv(incoming[number], number))
        elif name == "sum":
            works.append(dist.all_reduce(summed[number], async_op=True))
        else:
            works.append(dist.all_gather_into_tensor(gathered[number], mine, async_op=True))
    both = [dist.P2POp(dist.isend, mine[:500], peer) for peer in peers]
    both += [dist.P2POp(dist.irecv, batch[peer], peer) for peer in peers]
    pace.shuffle(both)
    for work in [*works, *dist.batch_isend_irecv(both)]:
        assert work is not None
        work.wait()
    for peer in peers:
        assert incoming[peer].eq(peer * 10 + rank).all().item()
        assert batch[peer].eq(peer).all().item()
    for step in range(4):
        assert summed[step].eq(sum(range(size)) + size * step).all().item()
        assert torch.equal(gathered[step].cpu(), torch.arange(size).repeat_interleave(1000).float())


@pytest.mark.parametrize("seed", [0, later(1), later(2)])
def test_messages_and_collectives(islands: Ranks, seed: int) -> None:
    islands.run(beside_messages, seed)


def groups_in_opposite_orders(rank: int) -> str:
    groups = [dist.new_group(timeout=timedelta(seconds=3)) for _ in range(2)]
    if rank == 1:
        groups.reverse()
    tensors = [torch.ones(10).to(device()) for _ in groups]
    works = [dist.all_reduce(tensor, group=each, async_op=True) for tensor, each in zip(tensors, groups, strict=True)]
    try:
        for work in works:
            assert work is not None
            work.wait()
        return f"no error, and the sums are {[tensor.sum().item() for tensor in tensors]}"
    except RuntimeError as error:
        return str(error)


def test_groups_that_block_each_other_are_named() -> None:
    """Groups do not agree on an order with each other, and a full device runs what comes first: this never ends."""
    ranks = Ranks(2, ["A", "A"], {}, ["sim", "sim"])
    try:
        errors = ranks.run(groups_in_opposite_orders)
    finally:
        ranks.stop()
    assert any("timed out" in error and "in the same order on every rank" in error for error in errors), errors
