# SPDX-License-Identifier: Apache-2.0
"""Measures the link of each pair of ranks, and explains why the pair uses that kind of link.

The pairs take turns, so that each has the machine to itself. The lower rank of a pair drives: it sends orders, which
the other follows, and chooses sizes and counts from its measurements, so that a slow link takes no longer than a fast
one."""

import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from atoll.doctor.facts import Facts

MAX_RANKS_FOR_ALL_PAIRS = 16
_ALL_SECONDS = 6.0
_PAIR_SECONDS = 0.12  # for latency and for each direction together
_END, _PING, _TOWARDS_PEER, _TOWARDS_DRIVER = range(4)
_MAX_PINGS = 1000
_FIRST_BYTES, _MAX_BYTES, _MAX_MESSAGES = 64 << 10, 4 << 20, 64
_GROWTH = 4
_BURSTS = 3


@dataclass(frozen=True)
class Measured:
    """The measurements of one pair. Rates are in GB/s, for messages of `bytes`; `latency_us` is half a round trip of 4
    bytes."""

    a: int
    b: int
    link: str  # as in atoll.links: "shm", or "tcp" with both addresses
    latency_us: float
    a_to_b: float
    b_to_a: float
    bytes: int

    @property
    def kind(self) -> str:
        return self.link.split()[0]


def pairs_to_measure(ranks: int, islands: list[list[int]]) -> list[tuple[int, int]]:
    """Returns all pairs of a small group; of a larger one, the first ranks of every two islands, and each rank with the
    next one of its island."""
    if ranks <= MAX_RANKS_FOR_ALL_PAIRS:
        return [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    first = sorted(min(island) for island in islands)
    pairs = {(a, b) for a in first for b in first if a < b}
    for island in islands:
        ordered = sorted(island)
        pairs.update(pairwise(ordered))
    return sorted(pairs)


def measure(group: dist.ProcessGroup, islands: list[list[int]]) -> list[dict[str, Any]]:
    """Returns the measurements of this rank as the lower one of its pairs: Measured as dictionaries. Called on all
    ranks."""
    import atoll

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    pairs = pairs_to_measure(ranks, islands)
    seconds = min(_PAIR_SECONDS, _ALL_SECONDS / max(1, len(pairs)))
    found = []
    for a, b in pairs:
        if rank == a:
            found.append((b, _Driver(group, b, seconds / 3).measure()))
        elif rank == b:
            _follow(group, a)
        dist.barrier(group=group)
    link_to = atoll.links(group)
    return [asdict(Measured(rank, peer, link_to[peer], *numbers)) for peer, numbers in found]


class _Driver:
    def __init__(self, group: dist.ProcessGroup, peer: int, seconds: float) -> None:
        self.group, self.peer, self.seconds = group, peer, seconds
        self.small = torch.zeros(1)
        self.large = _message()

    def measure(self) -> tuple[float, float, float, int]:
        """Returns the latency in microseconds, both rates, and the size of the messages."""
        latency = self.latency_us()
        size = self.message_bytes()
        rates = [self.rate(direction, size) for direction in (_TOWARDS_PEER, _TOWARDS_DRIVER)]
        self.order(_END, 0, 0)
        return latency, rates[0], rates[1], size

    def order(self, kind: int, count: int, size: int) -> None:
        dist.send(torch.tensor([kind, count, size]), group=self.group, group_dst=self.peer)

    def latency_us(self) -> float:
        rounds = 3
        while True:
            begin = time.perf_counter()
            seconds = median(self.pings(rounds))
            elapsed = time.perf_counter() - begin
            if rounds >= _MAX_PINGS or elapsed * _GROWTH > self.seconds:
                return seconds / 2 * 1e6
            rounds = min(_MAX_PINGS, rounds * _GROWTH)

    def pings(self, rounds: int) -> list[float]:
        self.order(_PING, rounds, 0)
        times = []
        for _ in range(rounds):
            begin = time.perf_counter()
            dist.send(self.small, group=self.group, group_dst=self.peer)
            dist.recv(self.small, group=self.group, group_src=self.peer)
            times.append(time.perf_counter() - begin)
        return times

    def message_bytes(self) -> int:
        size = _FIRST_BYTES
        while size < _MAX_BYTES and self.stream(_TOWARDS_PEER, 1, size) * _GROWTH <= self.seconds:
            size *= 2
        return size

    def rate(self, direction: int, size: int) -> float:
        once = self.stream(direction, 1, size)
        count = max(1, min(_MAX_MESSAGES, int(self.seconds / once / _BURSTS)))
        seconds = median(self.stream(direction, count, size) for _ in range(_BURSTS))
        return count * size / seconds * 1e-9

    def stream(self, direction: int, count: int, size: int) -> float:
        """Returns the seconds until `count` messages have arrived."""
        message = self.large[:size]
        self.order(direction, count, size)
        begin = time.perf_counter()
        for _ in range(count):
            if direction == _TOWARDS_PEER:
                dist.send(message, group=self.group, group_dst=self.peer)
            else:
                dist.recv(message, group=self.group, group_src=self.peer)
        if direction == _TOWARDS_PEER:
            dist.recv(self.small, group=self.group, group_src=self.peer)
        return time.perf_counter() - begin


def _message() -> torch.Tensor:
    """Returns ones, because fresh zeros may be a single page of the system, which stays in every cache."""
    return torch.ones(_MAX_BYTES, dtype=torch.uint8)


def _follow(group: dist.ProcessGroup, driver: int) -> None:
    """Follows the driver's orders until it is done."""
    small, large = torch.zeros(1), _message()
    order = torch.zeros(3, dtype=torch.int64)
    while True:
        dist.recv(order, group=group, group_src=driver)
        kind, count, size = order.tolist()
        if kind == _END:
            return
        for _ in range(count):
            if kind != _TOWARDS_DRIVER:
                dist.recv(small if kind == _PING else large[:size], group=group, group_src=driver)
            if kind != _TOWARDS_PEER:
                dist.send(small if kind == _PING else large[:size], group=group, group_dst=driver)
        if kind == _TOWARDS_PEER:
            dist.send(small, group=group, group_dst=driver)


def reason(kind: str, a: Facts, b: Facts) -> str:
    """Returns why two ranks use a link of this kind."""
    if kind == "ucx":
        return "ATOLL_TRANSPORT=ucx" if "ucx" in (a.transport, b.transport) else "RDMA on both hosts"
    if "ucx" in (a.transport, b.transport):
        return "UCX does not serve this pair"
    if kind == "shm":
        return f"both on host {a.host_label or a.host}"
    if a.place == b.place:
        return "ATOLL_TRANSPORT=tcp"
    if a.machine != b.machine:
        return f"different hosts: {a.host_label or a.host} and {b.host_label or b.host}"
    if a.host_label or b.host_label:
        return f"one machine, ATOLL_HOST makes it two: {a.host_label or 'unset'} and {b.host_label or 'unset'}"
    return f"one machine, two network namespaces: {a.network} and {b.network}"
