# SPDX-License-Identifier: Apache-2.0
"""The operations that can be measured: their buffers, the call through torch.distributed, and the expected result.

Buffers are in place where torch.distributed allows it: all_reduce, broadcast, reduce, all_gather, gather, scatter."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

import atoll
from atoll._newer_torch import all_gather_single, reduce_scatter_single
from atoll.bench import values

ROOT = 0
REDUCE_OPS = {name: getattr(dist.ReduceOp, name.upper()) for name in values.REDUCTIONS}


@dataclass(frozen=True)
class Problem:
    """The measured case, the same on all ranks. `bytes` is the whole buffer, as nccl-tests counts it."""

    operation: str
    bytes: int
    dtype: str = "float32"
    reduction: str = "sum"
    device: str = "cpu"  # of this rank's buffers; may differ between ranks
    arena: bool = False  # whether the buffers are atoll.empty's


class Operation:
    """One operation on its own buffers: on all ranks `fill`, then `call` a number of times, then `wrong` with that
    number."""

    reduces = False
    rounds_per_call = 1  # a ping-pong is two messages
    split = False  # whether the buffer holds one part per rank

    def __init__(self, problem: Problem, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)
        self.number = values.NUMBER_TYPES[problem.dtype]
        self.op = problem.reduction if self.reduces else "sum"
        self.device = problem.device
        self.arena = problem.arena
        parts = self.ranks if self.split else 1
        self.count = max(1, problem.bytes // self.number.dtype.itemsize // parts)
        self.bytes = self.count * parts * self.number.dtype.itemsize
        self.allocate(self.count * parts)

    def allocate(self, elements: int) -> None:
        self.buffer = self.empty(elements)

    def empty(self, elements: int) -> torch.Tensor:
        if self.arena:
            return atoll.empty(elements, dtype=self.number.dtype)
        return torch.empty(elements, dtype=self.number.dtype, device=self.device)

    @property
    def most_calls(self) -> int:
        return values.MAX_CALLS

    def bus_factor(self) -> float:
        return 1.0

    def fill(self) -> None:
        values.fill(self.buffer, self.contribution(self.rank))

    def call(self) -> None:
        raise NotImplementedError

    def wrong(self, calls: int) -> int:
        raise NotImplementedError

    def contribution(self, rank: int) -> torch.Tensor:
        return values.contribution(self.number, rank, self.op)

    def all_contributions(self) -> list[torch.Tensor]:
        return [self.contribution(rank) for rank in range(self.ranks)]

    def part(self, buffer: torch.Tensor, rank: int) -> torch.Tensor:
        return buffer[rank * self.count : (rank + 1) * self.count]

    def wrong_parts(self, buffer: torch.Tensor) -> int:
        """Counts the wrong elements of a buffer that must hold each rank's part."""
        return sum(
            values.wrong(self.part(buffer, rank), self.contribution(rank), rank * self.count)
            for rank in range(self.ranks)
        )


class AllReduce(Operation):
    reduces = True

    @property
    def most_calls(self) -> int:
        return values.most_calls(self.number, self.op, self.ranks)

    def bus_factor(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks

    def call(self) -> None:
        dist.all_reduce(self.buffer, REDUCE_OPS[self.op], group=self.group)

    def wrong(self, calls: int) -> int:
        expected = values.reduced_repeatedly(self.all_contributions(), self.op, calls)
        relative = values.tolerance(self.number, self.op, self.ranks, calls)
        return values.wrong(self.buffer, expected, relative=relative)


class Reduce(Operation):
    """Backends may leave any values on ranks that are not the root, so one more call on fresh values is checked."""

    reduces = True

    def call(self) -> None:
        dist.reduce(self.buffer, ROOT, REDUCE_OPS[self.op], group=self.group)

    def wrong(self, calls: int) -> int:
        self.fill()
        self.call()
        if self.rank != ROOT:
            return 0
        relative = values.tolerance(self.number, self.op, self.ranks, 1)
        return values.wrong(self.buffer, values.reduced(self.all_contributions(), self.op), relative=relative)


class Broadcast(Operation):
    def call(self) -> None:
        dist.broadcast(self.buffer, ROOT, group=self.group)

    def wrong(self, calls: int) -> int:
        return values.wrong(self.buffer, self.contribution(ROOT))


class Parts(Operation):
    split = True

    def bus_factor(self) -> float:
        return (self.ranks - 1) / self.ranks


class AllGather(Parts):
    def fill(self) -> None:
        self.buffer.zero_()
        values.fill(self.part(self.buffer, self.rank), self.contribution(self.rank), self.rank * self.count)

    def call(self) -> None:
        all_gather_single(self.buffer, self.part(self.buffer, self.rank), group=self.group)

    def wrong(self, calls: int) -> int:
        return self.wrong_parts(self.buffer)


class ReduceScatter(Parts):
    reduces = True

    def allocate(self, elements: int) -> None:
        super().allocate(elements)
        self.result = self.empty(self.count)

    def fill(self) -> None:
        super().fill()
        self.result.zero_()

    def call(self) -> None:
        reduce_scatter_single(self.result, self.buffer, REDUCE_OPS[self.op], group=self.group)

    def wrong(self, calls: int) -> int:
        expected = values.reduced(self.all_contributions(), self.op)
        relative = values.tolerance(self.number, self.op, self.ranks, 1)
        return values.wrong(self.result, expected, self.rank * self.count, relative)


class AllToAll(Parts):
    def allocate(self, elements: int) -> None:
        super().allocate(elements)
        self.result = self.empty(elements)

    def fill(self) -> None:
        super().fill()
        self.result.zero_()

    def call(self) -> None:
        dist.all_to_all_single(self.result, self.buffer, group=self.group)

    def wrong(self, calls: int) -> int:
        phase = self.rank * self.count
        return sum(
            values.wrong(self.part(self.result, rank), self.contribution(rank), phase) for rank in range(self.ranks)
        )


class Gather(AllGather):
    def call(self) -> None:
        parts = [self.part(self.buffer, rank) for rank in range(self.ranks)] if self.rank == ROOT else None
        dist.gather(self.part(self.buffer, self.rank), parts, ROOT, group=self.group)

    def wrong(self, calls: int) -> int:
        return self.wrong_parts(self.buffer) if self.rank == ROOT else 0


class Scatter(Parts):
    def fill(self) -> None:
        if self.rank == ROOT:
            values.fill(self.buffer, self.contribution(ROOT))
        else:
            self.buffer.zero_()

    def call(self) -> None:
        parts = [self.part(self.buffer, rank) for rank in range(self.ranks)] if self.rank == ROOT else None
        dist.scatter(self.part(self.buffer, self.rank), parts, ROOT, group=self.group)

    def wrong(self, calls: int) -> int:
        return values.wrong(self.part(self.buffer, self.rank), self.contribution(ROOT), self.rank * self.count)


class Send(Operation):
    """A ping-pong between the first and the last rank; the time is that of one message."""

    rounds_per_call = 2

    def allocate(self, elements: int) -> None:
        super().allocate(elements)
        self.received = self.empty(elements)
        self.peer = {0: self.ranks - 1, self.ranks - 1: 0}.get(self.rank)

    def fill(self) -> None:
        super().fill()
        self.received.zero_()

    def call(self) -> None:
        if self.peer is None:
            return
        if self.rank == 0:
            dist.send(self.buffer, self.peer, self.group)
            dist.recv(self.received, self.peer, self.group)
        else:
            dist.recv(self.received, self.peer, self.group)
            dist.send(self.buffer, self.peer, self.group)

    def wrong(self, calls: int) -> int:
        return 0 if self.peer is None else values.wrong(self.received, self.contribution(self.peer))


class Barrier(Operation):
    def __init__(self, problem: Problem, group: dist.ProcessGroup) -> None:
        super().__init__(problem, group)
        self.count = self.bytes = 0

    def fill(self) -> None:
        pass

    def call(self) -> None:
        dist.barrier(group=self.group)

    def wrong(self, calls: int) -> int:
        return 0


OPERATIONS: dict[str, type[Operation]] = {
    "all_reduce": AllReduce,
    "reduce_scatter": ReduceScatter,
    "all_gather": AllGather,
    "broadcast": Broadcast,
    "reduce": Reduce,
    "all_to_all": AllToAll,
    "gather": Gather,
    "scatter": Scatter,
    "send": Send,
    "barrier": Barrier,
}


def make(problem: Problem, group: dist.ProcessGroup) -> Operation:
    return OPERATIONS[problem.operation](problem, group)
