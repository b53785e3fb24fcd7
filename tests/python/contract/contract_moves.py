# SPDX-License-Identifier: Apache-2.0
"""The contract: operations that move values without changing them."""

import torch
import torch.distributed as dist

from contract_layouts import Placed, layouts
from contract_member import MOVED, Member, pattern, short

SIZES = (0, 1, 7, 1031)


def broadcast(me: Member) -> None:
    def check(dtype: torch.dtype) -> None:
        for count in SIZES:
            for root in range(me.size):
                tensor = pattern(me.rank, (count,), dtype).to(me.device)
                dist.broadcast(tensor, root)
                me.expect(tensor, pattern(root, (count,), dtype))

    def check_layout(layout: str, shape: tuple[int, ...]) -> None:
        placed = Placed(layout, pattern(me.rank, shape, torch.float32), me.device)
        dist.broadcast(placed.tensor, me.size - 1, async_op=True).wait()
        me.expect(placed.tensor, pattern(me.size - 1, shape, torch.float32))
        me.check(placed.is_alone(), "something was written beside the tensor")

    for dtype in MOVED:
        me.case(short(dtype), lambda dtype=dtype: check(dtype))
    for layout, shape in layouts():
        me.case(f"{layout} {list(shape)}", lambda layout=layout, shape=shape: check_layout(layout, shape))


def all_gather(me: Member) -> None:
    def check(dtype: torch.dtype) -> None:
        for count in SIZES:
            parts = [pattern(r, (count,), dtype) for r in range(me.size)]
            outputs = [torch.empty_like(part, device=me.device) for part in parts]
            dist.all_gather(outputs, parts[me.rank].to(me.device))
            for output, part in zip(outputs, parts, strict=True):
                me.expect(output, part)

    def uneven() -> None:
        parts = [pattern(r, (3 * r,), torch.float32) for r in range(me.size)]
        outputs = [torch.empty_like(part, device=me.device) for part in parts]
        dist.all_gather(outputs, parts[me.rank].to(me.device))
        for output, part in zip(outputs, parts, strict=True):
            me.expect(output, part)

    def check_layout(layout: str) -> None:
        parts = [pattern(r, (3, 5), torch.float32) for r in range(me.size)]
        outputs = [Placed(layout, torch.zeros(3, 5), me.device) for _ in parts]
        dist.all_gather([output.tensor for output in outputs], Placed(layout, parts[me.rank], me.device).tensor)
        for output, part in zip(outputs, parts, strict=True):
            me.expect(output.tensor, part)
            me.check(output.is_alone(), "something was written beside the tensor")

    for dtype in MOVED:
        me.case(short(dtype), lambda dtype=dtype: check(dtype))
    me.case("uneven", uneven)
    for layout in ("in one piece", "shifted", "transposed", "with gaps"):
        me.case(layout, lambda layout=layout: check_layout(layout))


def all_gather_into_tensor(me: Member) -> None:
    def check(dtype: torch.dtype) -> None:
        for count in SIZES:
            parts = [pattern(r, (count,), dtype) for r in range(me.size)]
            flat = torch.empty_like(torch.cat(parts), device=me.device)
            dist.all_gather_into_tensor(flat, parts[me.rank].to(me.device))
            me.expect(flat, torch.cat(parts))

    def in_place() -> None:
        parts = [pattern(r, (5,), torch.float32) for r in range(me.size)]
        flat = torch.full((5 * me.size,), -1.0, device=me.device)
        mine = flat[me.rank * 5 : me.rank * 5 + 5]
        mine.copy_(parts[me.rank])
        dist.all_gather_into_tensor(flat, mine)
        me.expect(flat, torch.cat(parts))

    for dtype in MOVED:
        me.case(short(dtype), lambda dtype=dtype: check(dtype))
    me.case("in place", in_place)


def gather(me: Member) -> None:
    def check(dtype: torch.dtype) -> None:
        parts = [pattern(r, (57,), dtype) for r in range(me.size)]
        for root in range(me.size):
            outputs = [torch.empty_like(part, device=me.device) for part in parts] if me.rank == root else None
            dist.gather(parts[me.rank].to(me.device), outputs, dst=root)
            for output, part in zip(outputs or [], parts, strict=False):
                me.expect(output, part)

    for dtype in MOVED:
        me.case(short(dtype), lambda dtype=dtype: check(dtype))


def scatter(me: Member) -> None:
    def check(dtype: torch.dtype) -> None:
        parts = [pattern(r, (57,), dtype) for r in range(me.size)]
        for root in range(me.size):
            output = torch.empty_like(parts[0], device=me.device)
            dist.scatter(output, [part.to(me.device) for part in parts] if me.rank == root else None, src=root)
            me.expect(output, parts[me.rank])

    for dtype in MOVED:
        me.case(short(dtype), lambda dtype=dtype: check(dtype))


def block(sender: int, receiver: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a block with a different length for each pair; rank 0 keeps nothing for itself."""
    return pattern(2 * sender + receiver, ((sender + 2 * receiver) * 11,), dtype)


def all_to_all(me: Member) -> None:
    def lists(dtype: torch.dtype) -> None:
        outputs = [torch.empty_like(block(r, me.rank, dtype), device=me.device) for r in range(me.size)]
        dist.all_to_all(outputs, [block(me.rank, r, dtype).to(me.device) for r in range(me.size)])
        for r, output in enumerate(outputs):
            me.expect(output, block(r, me.rank, dtype))

    def splits(dtype: torch.dtype) -> None:
        inputs = [block(me.rank, r, dtype) for r in range(me.size)]
        wanted = [block(r, me.rank, dtype) for r in range(me.size)]
        flat = torch.empty_like(torch.cat(wanted), device=me.device)
        given = torch.cat(inputs).to(me.device)
        dist.all_to_all_single(flat, given, [len(part) for part in wanted], [len(part) for part in inputs])
        me.expect(flat, torch.cat(wanted))

    def equal_rows() -> None:
        rows = [pattern(r, (me.size * 2, 3), torch.int64) for r in range(me.size)]
        result = torch.empty_like(rows[0], device=me.device)
        dist.all_to_all_single(result, rows[me.rank].to(me.device))
        me.expect(result, torch.cat([part.split(2)[me.rank] for part in rows]))

    for dtype in MOVED:
        me.case(f"lists {short(dtype)}", lambda dtype=dtype: lists(dtype))
        me.case(f"splits {short(dtype)}", lambda dtype=dtype: splits(dtype))
    me.case("equal rows", equal_rows)


def objects(me: Member) -> None:
    mine = {"rank": me.rank, "text": "x" * (10 * me.rank), "tensor": torch.full((me.rank,), 1.0)}

    def gathered_everywhere() -> None:
        everyone: list[dict[str, object]] = [{} for _ in range(me.size)]
        dist.all_gather_object(everyone, mine)
        assert [found["rank"] for found in everyone] == list(range(me.size))

    def from_one() -> None:
        given = [mine, "all"] if me.rank == me.size - 1 else [None, None]
        dist.broadcast_object_list(given, src=me.size - 1)
        assert given[1] == "all"
        received: list[str | None] = [None]
        dist.scatter_object_list(received, [f"for {r}" for r in range(me.size)] if me.rank == 0 else None, src=0)
        assert received == [f"for {me.rank}"]

    def to_one() -> None:
        found: list[str | None] | None = [None] * me.size if me.rank == 0 else None
        dist.gather_object(mine["text"], found, dst=0)
        assert me.rank or found == ["x" * (10 * r) for r in range(me.size)]

    me.case("all_gather_object", gathered_everywhere)
    me.case("broadcast_object_list, scatter_object_list", from_one)
    me.case("gather_object", to_one)


PROPERTIES = [broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all, objects]
