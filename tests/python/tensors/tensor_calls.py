# SPDX-License-Identifier: Apache-2.0
"""Every operation of torch.distributed with tensors of one kind in one of its arguments, and the results of one
process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from tensor_kinds import Kind, plain, read_back

Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def pattern(rank: int, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns small whole numbers that differ by rank and position, so that sums of a few are exact."""
    index = torch.arange(rows * 3).view(rows, 3)
    real = ((index * (rank + 2) + index // 4 + rank) % 5).to(torch.float32)
    return torch.complex(real, real.flip(0) - 2) if dtype.is_complex else real


@dataclass
class Setting:
    """One case: tensors of the kind are the inputs or the outputs, on all ranks or on the last one."""

    rank: int
    size: int
    device: str
    kind: Kind
    role: str
    """ "input", "output", or "both" for arguments that are read and written."""
    everywhere: bool
    group: dist.ProcessGroup
    _made: list[torch.Tensor] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.size - 1

    @property
    def ranks(self) -> range:
        return range(self.size)

    def is_odd(self, rank: int) -> bool:
        return self.everywhere or rank == self.last

    def values(self, rank: int, rows: int = 2) -> torch.Tensor:
        """Returns the rank's input values."""
        made = pattern(rank, rows, self.kind.dtype)
        return self.kind.fit(made) if self.role != "output" and self.is_odd(rank) else made

    def whole(self, rank: int) -> torch.Tensor:
        """Returns the rank's input values with two rows for each rank."""
        return self.values(rank, 2 * self.size)

    def part(self, rank: int, number: int) -> torch.Tensor:
        return self.whole(rank)[2 * number : 2 * number + 2]

    def given(self, values: torch.Tensor) -> torch.Tensor:
        """Returns this rank's input as a tensor."""
        return self._make(values, self.role != "output")

    def room(self, rows: int = 2) -> torch.Tensor:
        """Returns a tensor for results, which has other values so far."""
        return self._make(torch.full((rows, 3), 7, dtype=self.kind.dtype), self.role == "output")

    def _make(self, values: torch.Tensor, is_meant: bool) -> torch.Tensor:
        if not (is_meant and self.is_odd(self.rank)):
            return plain(values, self.device)
        tensor = self.kind.make(values, self.device)
        self._made.append(tensor)
        return tensor

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        is_of_the_kind = any(each is tensor for each in self._made)
        return self.kind.read(tensor) if is_of_the_kind else read_back(tensor)

    def sum(self, rows: int = 2) -> torch.Tensor:
        return torch.stack([self.values(rank, rows) for rank in self.ranks]).sum(0)

    def sum_of_parts(self) -> torch.Tensor:
        return torch.stack([self.part(rank, self.rank) for rank in self.ranks]).sum(0)


def all_reduce(s: Setting) -> Pairs:
    tensor = s.given(s.values(s.rank))
    dist.all_reduce(tensor, group=s.group)
    return [(tensor, s.sum())]


def all_reduce_async(s: Setting) -> Pairs:
    tensor = s.given(s.values(s.rank))
    work = dist.all_reduce(tensor, group=s.group, async_op=True)
    assert work is not None
    work.wait()
    return [(tensor, s.sum())]


def all_reduce_coalesced(s: Setting) -> Pairs:
    tensors = [s.given(s.values(s.rank)), s.given(s.whole(s.rank))]
    dist.all_reduce_coalesced(tensors, group=s.group)
    return list(zip(tensors, [s.sum(), s.sum(2 * s.size)], strict=True))


def coalescing_all_reduce(s: Setting) -> Pairs:
    tensors = [s.given(s.values(s.rank)), s.given(s.whole(s.rank))]
    with dist._coalescing_manager(s.group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=s.group)
    return list(zip(tensors, [s.sum(), s.sum(2 * s.size)], strict=True))


def broadcast(s: Setting, root: int) -> Pairs:
    tensor = s.given(s.values(s.rank))
    dist.broadcast(tensor, root, group=s.group)
    return [(tensor, s.values(root))]


def reduce(s: Setting, root: int) -> Pairs:
    tensor = s.given(s.values(s.rank))
    dist.reduce(tensor, root, group=s.group)
    return [(tensor, s.sum() if s.rank == root else s.values(s.rank))]


def all_gather(s: Setting) -> Pairs:
    parts = [s.room() for _ in s.ranks]
    dist.all_gather(parts, s.given(s.values(s.rank)), group=s.group)
    return [(part, s.values(rank)) for rank, part in enumerate(parts)]


def all_gather_into_tensor(s: Setting) -> Pairs:
    output = s.room(2 * s.size)
    dist.all_gather_into_tensor(output, s.given(s.values(s.rank)), group=s.group)
    return [(output, torch.cat([s.values(rank) for rank in s.ranks]))]


def coalescing_all_gather(s: Setting) -> Pairs:
    outputs = [s.room(2 * s.size), s.room(2 * s.size)]
    with dist._coalescing_manager(s.group):
        for output in outputs:
            dist.all_gather_into_tensor(output, s.given(s.values(s.rank)), group=s.group)
    return [(output, torch.cat([s.values(rank) for rank in s.ranks])) for output in outputs]


def gather(s: Setting, root: int) -> Pairs:
    parts = [s.room() for _ in s.ranks] if s.rank == root else None
    dist.gather(s.given(s.values(s.rank)), parts, root, group=s.group)
    return [(part, s.values(rank)) for rank, part in enumerate(parts or [])]


def scatter(s: Setting, root: int) -> Pairs:
    parts = [s.given(s.part(root, rank)) for rank in s.ranks] if s.rank == root else None
    output = s.room()
    dist.scatter(output, parts, root, group=s.group)
    return [(output, s.part(root, s.rank))]


def reduce_scatter(s: Setting) -> Pairs:
    output = s.room()
    dist.reduce_scatter(output, [s.given(s.part(s.rank, rank)) for rank in s.ranks], group=s.group)
    return [(output, s.sum_of_parts())]


def reduce_scatter_tensor(s: Setting) -> Pairs:
    output = s.room()
    dist.reduce_scatter_tensor(output, s.given(s.whole(s.rank)), group=s.group)
    return [(output, s.sum_of_parts())]


def coalescing_reduce_scatter(s: Setting) -> Pairs:
    outputs = [s.room(), s.room()]
    with dist._coalescing_manager(s.group):
        for output in outputs:
            dist.reduce_scatter_tensor(output, s.given(s.whole(s.rank)), group=s.group)
    return [(output, s.sum_of_parts()) for output in outputs]


def all_to_all(s: Setting) -> Pairs:
    outputs = [s.room() for _ in s.ranks]
    dist.all_to_all(outputs, [s.given(s.part(s.rank, rank)) for rank in s.ranks], group=s.group)
    return [(output, s.part(rank, s.rank)) for rank, output in enumerate(outputs)]


def all_to_all_single(s: Setting) -> Pairs:
    output = s.room(2 * s.size)
    dist.all_to_all_single(output, s.given(s.whole(s.rank)), group=s.group)
    return [(output, torch.cat([s.part(rank, s.rank) for rank in s.ranks]))]


def ring(s: Setting) -> Pairs:
    output, before, after = s.room(), (s.rank - 1) % s.size, (s.rank + 1) % s.size
    ops = [
        dist.P2POp(dist.isend, s.given(s.values(s.rank)), after, s.group),
        dist.P2POp(dist.irecv, output, before, s.group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return [(output, s.values(before))]


def messages(s: Setting) -> Pairs:
    """Sends messages from each rank to the next, one after the other."""
    output = s.room()
    for sender in s.ranks:
        receiver = (sender + 1) % s.size
        if s.rank == sender:
            dist.send(s.given(s.values(s.rank)), receiver, group=s.group)
        if s.rank == receiver:
            dist.recv(output, sender, group=s.group)
    return [(output, s.values((s.rank - 1) % s.size))]


def all_ranks(rank: int, size: int) -> bool:
    return True


def first(rank: int, size: int) -> bool:
    return rank == 0


def last(rank: int, size: int) -> bool:
    return rank == size - 1


def but_first(rank: int, size: int) -> bool:
    return rank > 0


def but_last(rank: int, size: int) -> bool:
    return rank < size - 1


Ranks = Callable[[int, int], bool]


@dataclass(frozen=True)
class Operation:
    """One form of an operation. `reads` and `writes` tell which ranks read or write its arguments."""

    name: str
    run: Callable[[Setting], Pairs]
    roles: tuple[str, ...] = ("both",)
    reads: Ranks = all_ranks
    writes: Ranks = all_ranks
    waits: bool = False
    """Whether a rank waits for the previous rank, which may refuse its tensor."""
    leaves_messages: bool = False
    """Whether messages that no rank receives may be in flight after a tensor is refused."""
    looks_at_pairs: bool = False
    """torch.distributed views complex tensors as pairs of real numbers."""
    smallest: int = 1
    """The smallest number of ranks that it needs."""
    lists_of_lists: str = ""
    """The role of the tensors that PyTorch's operator takes in lists of lists, which it does not look into."""


def rooted(
    name: str, run: Callable[[Setting, int], Pairs], *places: tuple[str, Ranks, Ranks], **more: Any
) -> list[Operation]:
    """Returns an operation for each root, the first rank or the last, with the ranks that then read and write."""

    def rooted_at(words: str) -> Callable[[Setting], Pairs]:
        return lambda s: run(s, 0 if "first" in words else s.last)

    return [Operation(f"{name} {words}", rooted_at(words), reads=reads, writes=writes, **more)
            for words, reads, writes in places]  # fmt: skip


IN_OUT = ("input", "output")
OPERATIONS = [
    Operation("all_reduce", all_reduce, looks_at_pairs=True),
    Operation("all_reduce async", all_reduce_async, looks_at_pairs=True),
    Operation("all_reduce_coalesced", all_reduce_coalesced, looks_at_pairs=True),
    Operation("coalescing all_reduce", coalescing_all_reduce, looks_at_pairs=True),
    *rooted(
        "broadcast", broadcast, ("from first", first, but_first), ("from last", last, but_last), looks_at_pairs=True
    ),
    *rooted("reduce", reduce, ("to first", all_ranks, first), ("to last", all_ranks, last)),
    Operation("all_gather", all_gather, IN_OUT, looks_at_pairs=True, lists_of_lists="output"),
    Operation("all_gather_into_tensor", all_gather_into_tensor, IN_OUT, looks_at_pairs=True),
    Operation("coalescing all_gather", coalescing_all_gather, IN_OUT, looks_at_pairs=True),
    *rooted(
        "gather",
        gather,
        ("to first", all_ranks, first),
        ("to last", all_ranks, last),
        roles=IN_OUT,
        lists_of_lists="output",
    ),
    *rooted(
        "scatter",
        scatter,
        ("from first", first, all_ranks),
        ("from last", last, all_ranks),
        roles=IN_OUT,
        looks_at_pairs=True,
        lists_of_lists="input",
    ),
    Operation("reduce_scatter", reduce_scatter, IN_OUT, lists_of_lists="input"),
    Operation("reduce_scatter_tensor", reduce_scatter_tensor, IN_OUT),
    Operation("coalescing reduce_scatter", coalescing_reduce_scatter, IN_OUT),
    Operation("all_to_all", all_to_all, IN_OUT, looks_at_pairs=True),
    Operation("all_to_all_single", all_to_all_single, IN_OUT, looks_at_pairs=True),
    Operation("batch_isend_irecv", ring, IN_OUT, looks_at_pairs=True, smallest=2, leaves_messages=True),
    Operation("send and recv", messages, IN_OUT, looks_at_pairs=True, smallest=2, waits=True, leaves_messages=True),
]
