# SPDX-License-Identifier: Apache-2.0
"""Exchanges small facts among all ranks of a group."""

import hashlib
import json
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from atoll._newer_torch import all_gather_single

Made = TypeVar("Made")


class Exchange:
    """Exchanges facts over the group's own collectives, so that a dead rank is an immediate error and not a timeout.
    `device`: on which the group takes tensors. All ranks must make the same calls."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.ranks = dist.get_world_size(group)
        self.rank = dist.get_rank(group)

    def numbers(self, own: list[float]) -> list[list[float]]:
        """Returns the numbers of each rank, by rank. All ranks pass equally many."""
        mine = torch.tensor(own, dtype=torch.float64, device=self.device)
        everyone = torch.empty(self.ranks * len(own), dtype=torch.float64, device=self.device)
        all_gather_single(everyone, mine, group=self.group)
        return everyone.cpu().view(self.ranks, len(own)).tolist()

    def facts(self, own: Any) -> list[Any]:
        """Returns the JSON value of each rank, by rank."""
        text = _as_json(own).encode()
        longest = int(max(size for (size,) in self.numbers([len(text)])))
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        everyone = torch.empty(self.ranks * longest, dtype=torch.uint8, device=self.device)
        all_gather_single(everyone, mine.to(self.device), group=self.group)
        rows = everyone.cpu().view(self.ranks, longest)
        return [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in rows]

    def agree(self, what: str, own: Callable[[], tuple[Made, dict[str, Any]]], way_out: str) -> Made:
        """Returns what this rank makes. `own` returns it, and facts that must be equal on all ranks. If `own` raises on
        some rank, all ranks raise: that rank its own error, the others ValueError with its text. Raises ValueError on
        all ranks if they differ in one of the facts, and names it, the values and the ranks."""
        try:
            made, facts = own()
            _as_json(facts)
        except Exception as error:
            self.facts([f"{type(error).__name__}: {error}", {}])
            raise
        everyone = self.facts(["", facts])
        for rank, (problem, _) in enumerate(everyone):
            if problem:
                raise ValueError(f"{what}: rank {rank} has a {problem}")
        for name in sorted({name for _, its in everyone for name in its}):
            by_value: dict[str, list[int]] = {}
            for rank, (_, its) in enumerate(everyone):
                by_value.setdefault(json.dumps(its.get(name)), []).append(rank)
            if len(by_value) > 1:
                said = "; ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in by_value.items())
                raise ValueError(f"{what}: {name} differs: {said}. {way_out}")
        return made

    def refuse(self, problem: str) -> None:
        """Raises ValueError on all ranks if any has a problem, and names the first such rank; "" means no problem."""
        for rank, text in enumerate(self.facts(problem)):
            if text:
                raise ValueError(f"rank {rank}: {text}")


def hash_of(text: str) -> int:
    """Returns 48 bits, which fit in a float."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=operator.index)  # other libraries have their own integer types


def ranks_text(ranks: list[int]) -> str:
    """Returns the first few ranks as text for a message."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
