# SPDX-License-Identifier: Apache-2.0
"""The bodies of the tests of simccl: every operation against a reference, which the CPU computes in rank order."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from support import Ranks

Op = dist.ReduceOp
SIZES = (0, 1, 7, 12_345)
LARGE = 1_000_003
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
REDUCED = (torch.bool, *INTEGERS, *FLOATS)
MOVED = (*REDUCED, torch.float8_e4m3fn)

LONG = timedelta(seconds=60)

_groups: dict[str, dist.ProcessGroup] = {}


def ranks_on_sim(size: int, **environment: str) -> Iterator[Ranks]:
    """Processes with simulated devices, until the caller is done with them. Operations run concurrently unless
    something else is requested."""
    ranks = Ranks(size, environment={"ATOLL_SIM_SERIAL": "0", **environment}, devices=["sim"] * size)
    yield ranks
    ranks.stop()


def group() -> dist.ProcessGroup:
    """Returns the simccl group of all ranks of this process, which is made once and has met in its first operation."""
    if "all" not in _groups:
        _groups["all"] = dist.new_group(backend="simccl", timeout=timedelta(seconds=60))
        dist.barrier(group=_groups["all"])
    return _groups["all"]


def fresh_group(timeout_s: float) -> dist.ProcessGroup:
    """Returns a new group that a test may break, and whose ranks have met."""
    made: dist.ProcessGroup = dist.new_group(backend="simccl", timeout=timedelta(seconds=timeout_s))
    backend(made).eager_connect_single_device(torch.device("sim", 0))
    return made


def backend(of: dist.ProcessGroup) -> Any:
    return of._get_backend(torch.device("sim"))


def store() -> dist.Store:
    """Returns a store for notes between the ranks of a test, which does not depend on any group; waiting in it
    delays no other rank."""
    return dist.distributed_c10d._get_default_store().clone()


def data(rank: int, size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Returns the contribution of `rank`, which every rank can compute, on the CPU."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype in (torch.float32, torch.float64):
        return torch.randn(size, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return torch.randn(size, generator=generator).to(dtype)
    low = -5 if dtype.is_signed else 0
    return torch.randint(low, 6, (size,), generator=generator).to(dtype)


def on_sim(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("sim")


def reduced(op: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """Returns the contributions folded in rank order, in float32 for 16-bit types."""
    dtype = parts[0].dtype
    wide = dtype
    if dtype in (torch.float16, torch.bfloat16):
        wide = torch.float32
    elif dtype == torch.bool:
        wide = torch.int64
    result = parts[0].to(wide)
    for part in parts[1:]:
        other = part.to(wide)
        if op in (Op.SUM, Op.AVG):
            result = result + other
        elif op == Op.PRODUCT:
            result = result * other
        else:
            result = torch.minimum(result, other) if op == Op.MIN else torch.maximum(result, other)
    if op == Op.AVG:
        rounding = None if wide.is_floating_point else "trunc"
        result = torch.div(result, len(parts), rounding_mode=rounding)
    return result.to(dtype)


def reductions_of(dtype: torch.dtype) -> Iterator[Any]:
    yield from (Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX)
    if dtype != torch.bool:
        yield Op.AVG


def expect(found: torch.Tensor, wanted: torch.Tensor, *what: object) -> None:
    raw = found.cpu()
    assert (raw.dtype, raw.shape) == (wanted.dtype, wanted.shape), what
    same = torch.equal(raw.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))
    assert same or torch.equal(raw, wanted), (what, raw, wanted)


def cases(dtypes: tuple[torch.dtype, ...]) -> Iterator[tuple[torch.dtype, int]]:
    for dtype in dtypes:
        for size in SIZES:
            yield dtype, size
    yield torch.float32, LARGE
    yield torch.bfloat16, LARGE


def check_reductions(rank: int) -> None:
    ranks = dist.get_world_size()
    where = group()
    for dtype, size in cases(REDUCED):
        parts = [data(r, size, dtype) for r in range(ranks)]
        for op in reductions_of(dtype):
            wanted = reduced(op, parts)
            tensor = on_sim(parts[rank])
            dist.all_reduce(tensor, op, group=where)
            expect(tensor, wanted, "all_reduce", dtype, size, op)
            for root in range(ranks):
                tensor = on_sim(parts[rank])
                dist.reduce(tensor, root, op, group=where)
                expect(tensor, wanted if rank == root else parts[rank], "reduce", dtype, size, op)


def check_reduce_scatter(rank: int) -> None:
    ranks = dist.get_world_size()
    where = group()
    for dtype, size in cases(REDUCED):
        parts = [data(r, size * ranks, dtype) for r in range(ranks)]
        for op in reductions_of(dtype):
            wanted = reduced(op, parts)
            output = on_sim(torch.zeros(size, dtype=dtype))
            dist.reduce_scatter_tensor(output, on_sim(parts[rank]), op, group=where)
            expect(output, wanted[rank * size : (rank + 1) * size], "reduce_scatter_tensor", dtype, size, op)
            whole = on_sim(parts[rank])
            inside = whole[rank * size : (rank + 1) * size]
            dist.reduce_scatter_tensor(inside, whole, op, group=where)
            expect(inside, wanted[rank * size : (rank + 1) * size], "in place", dtype, size, op)
    sizes = [3 * r + 1 for r in range(ranks)]
    parts = [data(r, sum(sizes), torch.float32) for r in range(ranks)]
    output = torch.zeros(sizes[rank], device="sim")
    dist.reduce_scatter(output, [on_sim(part) for part in parts[rank].split(sizes)], group=where)
    expect(output, reduced(Op.SUM, parts).split(sizes)[rank], "reduce_scatter of unequal sizes")


def check_gathers(rank: int) -> None:
    ranks = dist.get_world_size()
    where = group()
    for dtype, size in cases(MOVED):
        parts = [data(r, size, dtype) for r in range(ranks)]
        mine = on_sim(parts[rank])
        flat = on_sim(torch.zeros(size * ranks, dtype=dtype))
        dist.all_gather_into_tensor(flat, mine, group=where)
        expect(flat, torch.cat(parts), "all_gather_into_tensor", dtype, size)
        inside = on_sim(torch.cat([part if r == rank else torch.zeros_like(part) for r, part in enumerate(parts)]))
        dist.all_gather_into_tensor(inside, inside[rank * size : (rank + 1) * size], group=where)
        expect(inside, torch.cat(parts), "in place", dtype, size)
        for root in range(ranks):
            outputs = [torch.zeros_like(mine) for _ in range(ranks)] if rank == root else None
            dist.gather(mine, outputs, root, group=where)
            for r, output in enumerate(outputs or []):
                expect(output, parts[r], "gather", dtype, size)
    unequal = [data(r, 2 * r + 1, torch.int64) for r in range(ranks)]
    lists = [on_sim(torch.zeros_like(part)) for part in unequal]
    dist.all_gather(lists, on_sim(unequal[rank]), group=where)
    for r, output in enumerate(lists):
        expect(output, unequal[r], "all_gather of unequal sizes")


def check_spreading(rank: int) -> None:
    ranks = dist.get_world_size()
    where = group()
    for dtype, size in cases(MOVED):
        parts = [data(r, size, dtype) for r in range(ranks)]
        for root in range(ranks):
            tensor = on_sim(parts[rank])
            dist.broadcast(tensor, root, group=where)
            expect(tensor, parts[root], "broadcast", dtype, size)
            output = on_sim(torch.zeros(size, dtype=dtype))
            dist.scatter(output, [on_sim(part) for part in parts] if rank == root else None, root, group=where)
            expect(output, parts[rank], "scatter", dtype, size)
        sent = [[data(10 * r + to, size, dtype) for to in range(ranks)] for r in range(ranks)]
        outputs = [on_sim(torch.zeros(size, dtype=dtype)) for _ in range(ranks)]
        dist.all_to_all(outputs, [on_sim(part) for part in sent[rank]], group=where)
        for r, output in enumerate(outputs):
            expect(output, sent[r][rank], "all_to_all", dtype, size)
    # Rank a sends a + b rows to rank b.
    rows = [[data(10 * a + b, 3 * (a + b), torch.float32).view(-1, 3) for b in range(ranks)] for a in range(ranks)]
    output = torch.zeros(sum(a + rank for a in range(ranks)), 3, device="sim")
    dist.all_to_all_single(
        output,
        on_sim(torch.cat(rows[rank])),
        output_split_sizes=[a + rank for a in range(ranks)],
        input_split_sizes=[rank + b for b in range(ranks)],
        group=where,
    )
    expect(output, torch.cat([rows[a][rank] for a in range(ranks)]), "all_to_all_single")


def check_coalesced(rank: int) -> None:
    ranks = dist.get_world_size()
    where = group()
    parts = [[data(r, size, torch.float32, seed=size) for size in (1, 5, 4096)] for r in range(ranks)]
    tensors = [on_sim(part) for part in parts[rank]]
    with dist._coalescing_manager(where, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=where)
    manager.wait()
    for i, tensor in enumerate(tensors):
        expect(tensor, reduced(Op.SUM, [parts[r][i] for r in range(ranks)]), "coalesced all_reduce")
    flat = [torch.zeros(part.numel() * ranks, device="sim") for part in parts[rank]]
    with dist._coalescing_manager(where, async_ops=True) as manager:
        for output, part in zip(flat, parts[rank], strict=True):
            dist.all_gather_into_tensor(output, on_sim(part), group=where)
    manager.wait()
    for i, output in enumerate(flat):
        expect(output, torch.cat([parts[r][i] for r in range(ranks)]), "coalesced all_gather")
    outputs = [torch.zeros(part.numel() // ranks, device="sim") for part in flat]
    with dist._coalescing_manager(where, async_ops=True) as manager:
        for output, whole in zip(outputs, flat, strict=True):
            dist.reduce_scatter_tensor(output, whole, group=where)
    manager.wait()
    for i, output in enumerate(outputs):
        expect(output, parts[rank][i] * ranks, "coalesced reduce_scatter")


def check_messages(rank: int) -> None:
    ranks = dist.get_world_size()
    where = group()
    others = [peer for peer in range(ranks) if peer != rank]
    # All ranks send first, then receive, so none waits for the order of another.
    for size in (0, 1, LARGE):
        works = [dist.isend(on_sim(data(rank, size, torch.float32, seed=peer)), peer, group=where) for peer in others]
        inboxes = {peer: torch.zeros(size, device="sim") for peer in others}
        works += [dist.irecv(inboxes[peer], peer, group=where) for peer in others]
        for work in works:
            assert work is not None
            work.wait()
        for peer in others:
            expect(inboxes[peer], data(peer, size, torch.float32, seed=rank), "message", size)
    inbox = [torch.zeros(3, dtype=torch.int32, device="sim") for _ in others]
    batch = [dist.P2POp(dist.irecv, inbox[i], peer, where) for i, peer in enumerate(others)]
    batch += [dist.P2POp(dist.isend, on_sim(data(rank, 3, torch.int32)), peer, where) for peer in others]
    for work in dist.batch_isend_irecv(batch) if batch else []:
        work.wait()
    for i, peer in enumerate(others):
        expect(inbox[i], data(peer, 3, torch.int32), "batch")


ALL = {
    "reductions": check_reductions,
    "reduce_scatter": check_reduce_scatter,
    "gathers": check_gathers,
    "spreading": check_spreading,
    "coalesced": check_coalesced,
    "messages": check_messages,
}
