# SPDX-License-Identifier: Apache-2.0
"""The contract: messages between two ranks, and several operations at once."""

import itertools

import torch
import torch.distributed as dist

from contract_layouts import Placed
from contract_member import MOVED, Member, Op, folded, pattern, short

LARGE = 700_001


def messages(me: Member) -> None:
    others = [other for other in range(me.size) if other != me.rank]

    def all_pairs(count: int) -> None:
        """All ranks send before any rank receives."""
        sent = {other: pattern(10 * me.rank + other, (count,), torch.float32).to(me.device) for other in others}
        sends = [dist.isend(tensor, other) for other, tensor in sent.items()]
        for other in reversed(others):
            inbox = torch.zeros(count, device=me.device)
            assert dist.recv(inbox, other) == other
            me.expect(inbox, pattern(10 * other + me.rank, (count,), torch.float32))
        for work in sends:
            assert work is not None
            work.wait()

    def check(dtype: torch.dtype) -> None:
        if me.rank == 0 and me.size > 1:
            dist.send(pattern(1, (57,), dtype).to(me.device), 1)
        elif me.rank == 1:
            inbox = torch.empty_like(pattern(1, (57,), dtype), device=me.device)
            dist.recv(inbox, 0)
            me.expect(inbox, pattern(1, (57,), dtype))

    for count in (0, 1, 5000, LARGE):
        me.case(f"all pairs {count}", lambda count=count: all_pairs(count))
    for dtype in MOVED:
        me.case(short(dtype), lambda dtype=dtype: check(dtype))


def message_forms(me: Member) -> None:
    last = me.size - 1

    def tags() -> None:
        if me.rank == 0 and last:
            works = [dist.isend(torch.tensor([float(tag)], device=me.device), last, tag=tag) for tag in (3, 1, 2)]
            for work in works:
                assert work is not None
                work.wait()
        elif me.rank == last and last:
            for tag in (1, 2, 3):
                inbox = torch.zeros(1, device=me.device)
                dist.recv(inbox, 0, tag=tag)
                me.check(inbox.item() == tag, f"{inbox} for tag {tag}")

    def order_of_one_tag() -> None:
        if me.rank == 0 and last:
            for turn in range(20):
                dist.send(torch.full((1 + 499 * turn,), float(turn), device=me.device), last)
        elif me.rank == last and last:
            for turn in range(20):
                inbox = torch.zeros(1 + 499 * turn, device=me.device)
                dist.recv(inbox, 0)
                me.check(bool((inbox.cpu() == turn).all()), f"not message {turn}")

    def any_source() -> None:
        group = me.group(4)
        if me.rank:
            dist.send(torch.tensor([float(me.rank)], device=me.device), 0, group=group)
            return
        seen = set()
        for _ in range(last):
            inbox = torch.zeros(1, device=me.device)
            source = dist.recv(inbox, group=group)
            me.check(source == inbox.item(), f"{inbox} from {source}")
            seen.add(source)
        assert seen == set(range(1, me.size))

    def with_gaps() -> None:
        values = pattern(5, (3, 4), torch.float32)
        if me.rank == 0 and last:
            dist.send(Placed("transposed", values, me.device).tensor, last)
        elif me.rank == last and last:
            inbox = Placed("with gaps", torch.zeros(3, 4), me.device)
            dist.recv(inbox.tensor, 0)
            me.expect(inbox.tensor, values)
            me.check(inbox.is_alone(), "something was written beside the tensor")

    me.case("tags", tags)
    me.case("order within a tag", order_of_one_tag)
    me.case("any source", any_source)
    me.case("with gaps", with_gaps)


def batches(me: Member) -> None:
    """Sends and receives of a batch may be in any order, also if the ranks' orders differ."""
    right, left = (me.rank + 1) % me.size, (me.rank - 1) % me.size

    def check(count: int, order: tuple[int, ...]) -> None:
        out = [torch.full((count,), float(me.rank + 100 * way), device=me.device) for way in range(2)]
        into = [torch.empty(count, device=me.device) for _ in range(2)]
        operations = [
            dist.P2POp(dist.isend, out[0], right, tag=1),
            dist.P2POp(dist.irecv, into[0], left, tag=1),
            dist.P2POp(dist.isend, out[1], left, tag=2),
            dist.P2POp(dist.irecv, into[1], right, tag=2),
        ]
        chosen = order if me.rank % 2 else order[::-1]
        for work in dist.batch_isend_irecv([operations[i] for i in chosen]):
            work.wait()
        me.check(bool((into[0].cpu() == left).all()), "wrong values from the left")
        me.check(bool((into[1].cpu() == right + 100).all()), "wrong values from the right")

    if me.size > 1:
        orders = list(itertools.permutations(range(4)))
        for count, chosen in ((1, orders), (200_000, orders[::8])):
            for order in chosen:
                me.case(f"{count} {order}", lambda count=count, order=order: check(count, order))


def coalescing(me: Member) -> None:
    counts = (3, 1, 501)

    def all_reduces() -> None:
        parts = [[pattern(r, (count,), torch.float32) for count in counts] for r in range(me.size)]
        tensors = [part.clone().to(me.device) for part in parts[me.rank]]
        with dist._coalescing_manager(async_ops=True) as region:
            for tensor in tensors:
                dist.all_reduce(tensor)
        region.wait()
        for i, tensor in enumerate(tensors):
            me.expect(tensor, folded(Op.SUM, [parts[r][i] for r in range(me.size)]))

    def all_gathers() -> None:
        outputs = [torch.empty(me.size * count, device=me.device) for count in counts]
        with dist._coalescing_manager(async_ops=True) as region:
            for count, output in zip(counts, outputs, strict=True):
                dist.all_gather_into_tensor(output, pattern(me.rank, (count,), torch.float32).to(me.device))
        region.wait()
        for count, output in zip(counts, outputs, strict=True):
            me.expect(output, torch.cat([pattern(r, (count,), torch.float32) for r in range(me.size)]))

    def reduce_scatters() -> None:
        outputs = [torch.empty(count, device=me.device) for count in counts]
        with dist._coalescing_manager(async_ops=True) as region:
            for count, output in zip(counts, outputs, strict=True):
                dist.reduce_scatter_tensor(output, torch.full((me.size * count,), 1.0, device=me.device))
        region.wait()
        for count, output in zip(counts, outputs, strict=True):
            me.expect(output, torch.full((count,), float(me.size)))

    me.case("all_reduce", all_reduces)
    me.case("all_gather_into_tensor", all_gathers)
    me.case("reduce_scatter_tensor", reduce_scatters)


PROPERTIES = [messages, message_forms, batches, coalescing]
