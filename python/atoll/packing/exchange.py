# SPDX-License-Identifier: Apache-2.0
"""Computes the mean over ranks of one flat tensor, sending only packed blocks between islands.

1. *Inside.* Each island adds its ranks' values in full precision, by its library. The tensor is divided into as many
   *lanes* as the smallest island has ranks, and the i-th rank of each island leads the i-th lane: it gets the sum of
   that part.
2. *Up.* The leads of a lane, one per island, own equal parts of it. Each packs what the others own and sends it to
   them: a quarter of float32's bytes.
3. *The owner* adds the unpacked values it receives and its own island's sum, which was never packed, in the order of
   group ranks in float32, divides once, and packs the result.
4. *Down.* The packed result is copied to all ranks, once into each island, and unpacked there. Unpacking is exact, so
   all ranks hold the same bits, on any device.

The loss of packing stays with the rank that packed, in steps 2 and 3, as the residual of error feedback
(Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training of speech
DNNs", 2014; Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", 2019). It is
added to the next values. So the sum over ranks of all values so far equals the sum of the results, times the number of
ranks, plus the residuals, up to float32's rounding.

With K islands the leads of a lane send 2 (K-1)/K bytes per element, plus 1/32, over the bridge. bfloat16 takes twice
2 (K-1)/K, so this is 33/64 of its bytes."""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, AllToAllOptions, ReduceOptions

from atoll.backend import backend_of, beside
from atoll.packing.blocks import BLOCK, pack, packed_bytes, unpack


class Exchange:
    """Computes means on its own backends, so that its collectives may run concurrently with others, on a separate
    thread. All ranks must call it in the same order."""

    def __init__(self, group: dist.ProcessGroup, format: str, compress_inside: bool, number: int) -> None:
        """Collective over the group, whose backend must be atoll (raises ValueError otherwise). `compress_inside`: each
        rank counts as a separate island. `number`: unique for each exchange of a group, the same on all ranks."""
        self.rank, self.size = group.rank(), group.size()
        self._format = format
        islands = [ranks for _, ranks in backend_of(group).islands()]
        if compress_inside:
            islands = [[rank] for rank in range(self.size)]
        own = next(ranks for ranks in islands if self.rank in ranks)
        self.islands = len(islands)
        self._all: Any = beside(group, list(range(self.size)), f"packing/{number}")
        self._inside: Any = None
        if 1 < len(own) < self.size:
            self._inside = beside(group, own, f"packing/{number}/{own[0]}")
        self._lanes = [sorted(ranks[lane] for ranks in islands) for lane in range(min(map(len, islands)))]
        self._lane = next((i for i, lane in enumerate(self._lanes) if self.rank in lane), None)
        self._memory: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def time_split(self) -> dict[str, float]:
        """Returns the same as atoll.time_split, for this exchange."""
        splits = [backend.time_split() for backend in (self._all, self._inside) if backend is not None]
        return {name: sum(split[name] for split in splits) for name in splits[0]}

    @property
    def is_lossy(self) -> bool:
        """Whether there is a bridge to compress for."""
        return self.islands > 1

    def led(self, count: int) -> range | None:
        """Returns which of `count` elements this rank leads and therefore keeps the residual of; the range may extend
        beyond them. None if it leads none."""
        if self._lane is None or not self.is_lossy:
            return None
        wide = self._part(count) * self.islands
        return range(self._lane * wide, (self._lane + 1) * wide)

    def mean(self, values: torch.Tensor, residual: torch.Tensor | None) -> None:
        """Replaces the flat values by their mean over ranks. `residual` (float32, as long as `led`) is added first, and
        receives the loss; without it the loss is dropped. Collective."""
        if not values.numel():
            return
        if not self.is_lossy:
            self._all.allreduce([values], AllreduceOptions()).wait()
            values.div_(self.size)
            return
        part = self._part(values.numel())
        wide = part * self.islands
        self._add_inside(values, wide)
        own = values.new_empty(0, dtype=torch.uint8)
        if self._lane is None:
            self._send(own.clone(), own, [0] * self.size)
        else:
            own = self._result(values[self._lane * wide : (self._lane + 1) * wide], residual, part)
        self._spread(own, values, part)

    def close(self) -> None:
        """Ends the backends. All ranks must call it."""
        self._memory.clear()
        for backend in (self._inside, self._all):
            if backend is not None:
                backend.shutdown()

    def _part(self, count: int) -> int:
        """Returns the number of elements per owner: whole blocks, equally many for all."""
        return BLOCK * -(-count // (BLOCK * len(self._lanes) * self.islands))

    def _add_inside(self, values: torch.Tensor, wide: int) -> None:
        if self._inside is None:
            return
        works = []
        for lane in range(len(self._lanes)):
            part = values[lane * wide : (lane + 1) * wide]
            if part.numel():
                options = ReduceOptions()
                options.rootRank = lane
                works.append(self._inside.reduce([part], options))
        for work in works:
            work.wait()

    def _send(self, sent: torch.Tensor, received: torch.Tensor, splits: list[int]) -> None:
        """Exchanges `splits` bytes with each rank."""
        self._all.alltoall_base(received, sent, splits, splits, AllToAllOptions()).wait()

    def _result(self, values: torch.Tensor, residual: torch.Tensor | None, part: int) -> torch.Tensor:
        """Returns this owner's part of the mean, packed."""
        assert self._lane is not None
        keep = residual is not None
        held = residual
        if held is None:
            held = self._take("held", part * self.islands, values, torch.float32).zero_()
        held[: values.numel()].add_(values)
        leads = self._lanes[self._lane]
        mine = leads.index(self.rank)
        bytes_of_part = packed_bytes(part)
        sent = self._take("sent", (self.islands - 1) * bytes_of_part, values, torch.uint8).view(-1, bytes_of_part)
        received = self._take("received", sent.numel(), values, torch.uint8).view_as(sent)
        pack(self._format, held[: mine * part], sent[:mine], part, keep)
        pack(self._format, held[(mine + 1) * part :], sent[mine:], part, keep)
        splits = [bytes_of_part if rank in leads and rank != self.rank else 0 for rank in range(self.size)]
        self._send(sent.view(-1), received.view(-1), splits)

        total = self._take("total", part, values, torch.float32).zero_()
        own = held[mine * part : (mine + 1) * part]
        for place in range(self.islands):
            if place == mine:
                total.add_(own)
            else:
                row = place if place < mine else place - 1
                unpack(self._format, received[row : row + 1], total, part, add=True)
        total.div_(self.size)
        result = self._take("result", bytes_of_part, values, torch.uint8)
        pack(self._format, total, result.view(1, -1), part, keep)
        if keep:
            own.copy_(total).mul_(self.size)
        return result

    def _spread(self, own: torch.Tensor, values: torch.Tensor, part: int) -> None:
        owners = [rank for lane in self._lanes for rank in lane]
        rows = self._take("rows", len(owners) * packed_bytes(part), values, torch.uint8).view(len(owners), -1)
        if owners == list(range(self.size)):
            self._all._allgather_base(rows.view(-1), own, AllgatherOptions()).wait()
        else:
            nothing = own.new_empty(0)
            outputs = [rows[owners.index(rank)] if rank in owners else nothing for rank in range(self.size)]
            self._all.allgather([outputs], [own], AllgatherOptions()).wait()
        unpack(self._format, rows, values, part)

    def _take(self, name: str, count: int, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns memory that is allocated once, for the largest request."""
        held = self._memory.get((name, dtype))
        if held is None or held.numel() < count:
            held = self._memory[name, dtype] = like.new_empty(count, dtype=dtype)
        return held[:count]
