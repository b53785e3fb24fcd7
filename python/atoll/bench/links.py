# SPDX-License-Identifier: Apache-2.0
"""The links that a run used, and whether they are the expected ones."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist

from atoll.bench import machine


@dataclass
class RankLinks:
    """The links of one rank."""

    rank: int
    island: str
    place: str
    transport: str  # what this rank may use: ATOLL_TRANSPORT
    kinds: dict[int, str]  # by peer: "shm", "tcp" or "ucx", for the links that are open

    def expected(self, peer: "RankLinks") -> str:
        if "ucx" in (self.transport, peer.transport):
            return "ucx"
        together = self.place == peer.place and "tcp" not in (self.transport, peer.transport)
        return "shm" if together else "tcp"


def of_this_rank(backend: str, group: dist.ProcessGroup) -> RankLinks:
    rank = dist.get_rank(group)
    kinds: dict[int, str] = {}
    island = "-"
    transport = os.environ.get("ATOLL_TRANSPORT", "auto")
    if backend == "atoll":
        import atoll

        kinds = {peer: text.split()[0] for peer, text in atoll.links(group).items()}
        island = next(label for label, members in atoll.islands(group) if rank in members)
    elif backend == "gloo":  # which has only TCP
        transport = "tcp"
        kinds = {peer: "tcp" for peer in range(dist.get_world_size(group)) if peer != rank}
    return RankLinks(rank, island, machine.place(), transport, kinds)


def describe_islands(ranks: Sequence[RankLinks]) -> str:
    """Returns each label with its ranks: A: 0 2, B: 1."""
    members: dict[str, list[str]] = {}
    for view in ranks:
        members.setdefault(view.island, []).append(str(view.rank))
    return ", ".join(f"{island}: {' '.join(of_island)}" for island, of_island in members.items())


def describe(ranks: Sequence[RankLinks]) -> str:
    """Returns each pair with its kind: 0-1 shm, 0-2 tcp."""
    pairs = {tuple(sorted((view.rank, peer))): kind for view in ranks for peer, kind in view.kinds.items()}
    return ", ".join(f"{a}-{b} {kind}" for (a, b), kind in sorted(pairs.items())) or "none"


def unexpected(ranks: Sequence[RankLinks], expected: str) -> list[str]:
    """Returns one line per link whose kind is not `expected` or, if that is empty, does not suit where its ends are."""
    found = []
    for view in ranks:
        for peer, kind in sorted(view.kinds.items()):
            wanted = expected or view.expected(ranks[peer])
            if kind != wanted:
                found.append(f"the link of rank {view.rank} to rank {peer} is {kind}, expected {wanted}")
    return found
