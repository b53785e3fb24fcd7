# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of exchanging a boundary while both ranks compute, beyond the time of its bytes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import torch
import torch.distributed as dist

from atoll.loading.exchange import Exchange
from atoll.pipeline.planner_request import Link, Measured, classes_of
from atoll.profiling.device import synchronize

_SECONDS = 0.1  # of a burst
_MIN_ROUNDS, _MAX_ROUNDS, _BURSTS = 3, 32, 3

Work = Callable[[], torch.Tensor]
"""Issues an item's forward and backward pass and returns the output."""


def under_load(exchange: Exchange, ranks: Sequence[Measured], links: Sequence[Link], work: Work) -> list[Link]:
    """Returns the links with their latencies while both ends compute, measured for one pair of every two classes. On an
    idle link a rank waits for its message. In a pipeline the message waits for a rank that is issuing operators, and
    that rank's device is idle until it continues. Collective."""
    known = {(link.a, link.b): link for link in links}
    classes = list(classes_of(ranks).values())
    place = {rank: number for number, members in enumerate(classes) for rank in members}
    own: list[list[float]] = []
    for pair in (pair for pair in _pairs(classes) if pair in known):
        if exchange.rank in pair:
            peer = pair[1] if exchange.rank == pair[0] else pair[0]
            own.append([*pair, _beyond_bytes(exchange, peer, known[pair], work)])
        dist.barrier(group=exchange.group)
    found: dict[frozenset[int], float] = {}
    for a, b, seconds in (each for told in exchange.facts(own) for each in told):
        both = frozenset((place[a], place[b]))
        found[both] = max(seconds, found.get(both, 0.0))

    def latency(link: Link) -> float:
        return max(link.latency, found.get(frozenset((place[link.a], place[link.b])), 0.0))

    return [replace(link, latency=latency(link)) for link in links]


def _pairs(classes: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns the first ranks of every two classes, and the first two of each class."""
    apart = [(min(a[0], b[0]), max(a[0], b[0])) for number, a in enumerate(classes) for b in classes[number + 1 :]]
    return sorted([*apart, *((members[0], members[1]) for members in classes if len(members) > 1)])


def _beyond_bytes(exchange: Exchange, peer: int, link: Link, work: Work) -> float:
    """Returns the seconds that an exchange both ways adds to a round of computing, beyond those of its bytes."""
    sent = work().detach().clone()
    received = torch.empty_like(sent)
    size = sent.numel() * sent.element_size()

    def swap(own: torch.Tensor, other: torch.Tensor) -> None:
        ends = [dist.P2POp(dist.isend, own, group=exchange.group, group_peer=peer),
                dist.P2POp(dist.irecv, other, group=exchange.group, group_peer=peer)]  # fmt: skip
        for done in dist.batch_isend_irecv(ends):
            done.wait()

    def burst(rounds: int, talks: bool) -> float:
        swap(sent, received)  # so that both start together
        synchronize(exchange.device)
        begin = time.perf_counter()
        for _ in range(rounds):
            sent.copy_(work().detach())
            if talks:
                swap(sent, received)
        synchronize(exchange.device)
        return (time.perf_counter() - begin) / rounds

    once = burst(1, True)
    # Both ends must do the same number of rounds: that of the faster one.
    count = torch.tensor([float(max(_MIN_ROUNDS, min(_MAX_ROUNDS, int(_SECONDS / once))))])
    theirs = torch.empty_like(count)
    swap(count, theirs)
    rounds = int(max(count.item(), theirs.item()))
    without = median(burst(rounds, False) for _ in range(_BURSTS))
    together = median(burst(rounds, True) for _ in range(_BURSTS))
    return max(0.0, together - without - size * link.seconds_per_byte)
