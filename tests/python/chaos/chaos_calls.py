# SPDX-License-Identifier: Apache-2.0
"""The operations of trials, each with its own buffers and expected results; every element is checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from chaos_trial import Call

Works = list[Any]


@dataclass
class Prepared:
    """An operation that is ready to start: `begin(asynchronously)` returns the works to wait for. `results` are the
    buffers with their expected values."""

    call: Call
    begin: Callable[[bool], Works]
    results: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def on_device(self) -> bool:
        """Returns whether results may arrive after the call has returned."""
        return any(found.device.type != "cpu" for found, _ in self.results)

    def check(self) -> None:
        """Raises AssertionError if an element is wrong."""
        for found, expected in self.results:
            here = found.cpu()
            if torch.equal(here, expected):
                continue
            wrong = (here != expected).sum().item()
            where = (here != expected).reshape(-1).nonzero()[0].item()
            raise AssertionError(
                f"wrong result: {wrong} of {here.numel()} elements of {self.call}, element {where} is "
                f"{here.reshape(-1)[where]} instead of {expected.reshape(-1)[where]}"
            )


class Side:
    """One rank's view of a group."""

    def __init__(self, group: dist.ProcessGroup, ranks: Sequence[int], rank: int, device: torch.device | str) -> None:
        self.group, self.ranks, self.device = group, list(ranks), device
        self.me, self.size = self.ranks.index(rank), len(self.ranks)

    def prepare(self, call: Call) -> Prepared:
        return PREPARE[call.operation](self, call)

    def place(self, call: Call) -> torch.device | str:
        return "cpu" if call.on_host else self.device

    def here(self, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone().to(self.place(call))

    def empty(self, call: Call, count: int) -> torch.Tensor:
        """Returns a buffer full of a value that no rank contributes."""
        return torch.full((count,), 99, dtype=getattr(torch, call.dtype)).to(self.place(call))


def values(call: Call, member: int, count: int, salt: int = 0) -> torch.Tensor:
    """Returns small whole numbers that differ by member, place and call, so that sums of a few are exact in every
    dtype."""
    pattern = (torch.arange(count, dtype=torch.int64) * 7 + member * 3 + call.salt + salt) % 5
    return pattern.to(getattr(torch, call.dtype))


def reduced(call: Call, size: int, count: int) -> torch.Tensor:
    stack = torch.stack([values(call, member, count).to(torch.int64) for member in range(size)])
    result = {"SUM": stack.sum(0), "MAX": stack.amax(0), "MIN": stack.amin(0)}[call.reduction]
    return result.to(getattr(torch, call.dtype))


def operator(call: Call) -> Any:
    return getattr(dist.ReduceOp, call.reduction)


def one(work: Any) -> Works:
    return [] if work is None else [work]


def all_reduce(side: Side, call: Call) -> Prepared:
    tensor = side.here(call, values(call, side.me, call.count))
    return Prepared(
        call,
        lambda later: one(dist.all_reduce(tensor, operator(call), side.group, async_op=later)),
        [(tensor, reduced(call, side.size, call.count))],
    )


def broadcast(side: Side, call: Call) -> Prepared:
    tensor = side.here(call, values(call, side.me, call.count))
    return Prepared(
        call,
        lambda later: one(dist.broadcast(tensor, call.root, side.group, async_op=later)),
        [(tensor, values(call, side.ranks.index(call.root), call.count))],
    )


def reduce(side: Side, call: Call) -> Prepared:
    tensor = side.here(call, values(call, side.me, call.count))
    expected = [(tensor, reduced(call, side.size, call.count))] if side.ranks[side.me] == call.root else []
    return Prepared(
        call, lambda later: one(dist.reduce(tensor, call.root, operator(call), side.group, async_op=later)), expected
    )


def all_gather(side: Side, call: Call) -> Prepared:
    mine = side.here(call, values(call, side.me, call.count))
    outputs = [side.empty(call, call.count) for _ in side.ranks]
    return Prepared(
        call,
        lambda later: one(dist.all_gather(outputs, mine, side.group, async_op=later)),
        [(output, values(call, member, call.count)) for member, output in enumerate(outputs)],
    )


def all_gather_flat(side: Side, call: Call) -> Prepared:
    mine = side.here(call, values(call, side.me, call.count))
    output = side.empty(call, call.count * side.size)
    expected = torch.cat([values(call, member, call.count) for member in range(side.size)])
    return Prepared(
        call,
        lambda later: one(dist.all_gather_into_tensor(output, mine, side.group, async_op=later)),
        [(output, expected)],
    )


def reduce_scatter(side: Side, call: Call) -> Prepared:
    mine = side.here(call, values(call, side.me, call.count * side.size))
    output = side.empty(call, call.count)
    expected = reduced(call, side.size, call.count * side.size)[side.me * call.count : (side.me + 1) * call.count]
    return Prepared(
        call,
        lambda later: one(dist.reduce_scatter_tensor(output, mine, operator(call), side.group, async_op=later)),
        [(output, expected)],
    )


def all_to_all(side: Side, call: Call) -> Prepared:
    """Exchanges unequal parts: member a sends count + (a + b) % 3 elements to member b."""

    def part(sender: int, receiver: int) -> torch.Tensor:
        return values(call, sender, call.count + (sender + receiver) % 3, receiver)

    sent = [part(side.me, member) for member in range(side.size)]
    expected = [part(member, side.me) for member in range(side.size)]
    mine = side.here(call, torch.cat(sent))
    output = side.empty(call, sum(map(len, expected)))
    sizes = [[len(each) for each in parts] for parts in (expected, sent)]
    return Prepared(
        call,
        lambda later: one(dist.all_to_all_single(output, mine, *sizes, group=side.group, async_op=later)),
        [(output, torch.cat(expected))],
    )


def gather(side: Side, call: Call) -> Prepared:
    mine = side.here(call, values(call, side.me, call.count))
    outputs = [side.empty(call, call.count) for _ in side.ranks] if side.ranks[side.me] == call.root else None
    return Prepared(
        call,
        lambda later: one(dist.gather(mine, outputs, call.root, side.group, async_op=later)),
        [(output, values(call, member, call.count)) for member, output in enumerate(outputs or [])],
    )


def scatter(side: Side, call: Call) -> Prepared:
    parts = [side.here(call, values(call, member, call.count)) for member in range(side.size)]
    output = side.empty(call, call.count)
    return Prepared(
        call,
        lambda later: one(
            dist.scatter(output, parts if side.ranks[side.me] == call.root else None, call.root, side.group, later)
        ),
        [(output, values(call, side.me, call.count))],
    )


def ring(side: Side, call: Call) -> Prepared:
    """Sends a message from each member to the next."""
    mine, found = side.here(call, values(call, side.me, call.count)), side.empty(call, call.count)
    before, after = (side.me - 1) % side.size, (side.me + 1) % side.size

    def begin(later: bool) -> Works:
        operations = [
            dist.P2POp(dist.isend, mine, side.ranks[after], side.group, call.salt),
            dist.P2POp(dist.irecv, found, side.ranks[before], side.group, call.salt),
        ]
        works = dist.batch_isend_irecv(operations)
        if not later:
            for work in works:
                work.wait()
        return works if later else []

    return Prepared(call, begin, [(found, values(call, before, call.count))])


def barrier(side: Side, call: Call) -> Prepared:
    return Prepared(call, lambda later: one(dist.barrier(side.group, async_op=later)))


PREPARE: dict[str, Callable[[Side, Call], Prepared]] = {
    function.__name__: function
    for function in (
        all_reduce, broadcast, reduce, all_gather, all_gather_flat, reduce_scatter, all_to_all, gather, scatter, ring,
        barrier,
    )
}  # fmt: skip
