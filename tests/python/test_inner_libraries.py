# SPDX-License-Identifier: Apache-2.0
"""A library inside an island must not change results, whatever the sizes, reductions and order of calls."""

import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import atoll
from launching import eventually
from support import Ranks, crossed, device, group_of_library, raises, threads_of_atoll

GLOO = {"ATOLL_INNER": "cpu:gloo"}
LAYOUTS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "AABB-cpu": ("AABB", ["cpu"] * 4, GLOO),
    "ABAAB-cpu": ("ABAAB", ["cpu"] * 5, GLOO),
    "AAB-sim": ("AAB", ["sim", "sim", "cpu"], {}),
    "ABAB-sim": ("ABAB", ["sim"] * 4, {}),
}
CHUNK = 2 << 20  # bytes


@pytest.fixture(params=LAYOUTS, scope="module")
def libraries(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    islands, devices, environment = LAYOUTS[request.param]
    ranks = Ranks(len(devices), list(islands), environment, devices)
    yield ranks
    ranks.stop()


def values_of_all(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Returns the values of all ranks: small whole numbers, whose sums and products are exact in every type."""
    steps = torch.arange(count)
    return [((steps * (rank + 1) + rank) % 3 + 1).to(dtype) for rank in range(dist.get_world_size())]


def reduced(op: Any, all_of: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack([each.to(torch.float64) for each in all_of])
    if op == dist.ReduceOp.MAX:
        return stacked.amax(0)
    if op == dist.ReduceOp.MIN:
        return stacked.amin(0)
    if op == dist.ReduceOp.PRODUCT:
        return stacked.prod(0)
    return stacked.mean(0) if op == dist.ReduceOp.AVG else stacked.sum(0)


def compare(found: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    whole = not found.dtype.is_floating_point
    wanted = (expected.trunc() if whole else expected).to(found.dtype)
    assert torch.equal(found.cpu(), wanted), (what, found.cpu()[:8], wanted[:8])


OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int64,
    torch.uint8,
]


def reduce_all_types(rank: int) -> None:
    for dtype in DTYPES:
        for op in OPS:
            for count in (1, 7, 5003):
                inputs = values_of_all(count, dtype)
                expected = reduced(op, inputs)
                tensor = inputs[rank].clone().to(device())
                dist.all_reduce(tensor, op)
                exact = dtype not in (torch.float16, torch.bfloat16) or op != dist.ReduceOp.AVG
                if exact:
                    compare(tensor, expected, (dtype, op, count))
                else:
                    assert torch.allclose(tensor.cpu().double(), expected, rtol=1e-2), (dtype, op, count)


def reduce_in_other_ways(rank: int) -> None:
    """Atoll itself does bitwise operations and bool; a factor is applied before the library adds."""
    size, count = dist.get_world_size(), 5003
    bits = torch.full((count,), 1 << rank, dtype=torch.int32, device=device())
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    assert bits.eq((1 << size) - 1).all().item()
    flags = torch.full((count,), rank == 1, device=device())
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.all().item()
    values = torch.full((count,), float(rank + 1), device=device())
    dist.all_reduce(values, dist._make_nccl_premul_sum(0.5))
    assert values.eq(0.5 * sum(range(1, size + 1))).all().item()


def sizes_at_the_borders(rank: int) -> None:
    """Around a chunk, a led part and the small limit; every operation that a library takes part in."""
    size = dist.get_world_size()
    for count in (1024, 1025, CHUNK // 4 - 1, CHUNK // 4, CHUNK // 4 + 1, 3 * CHUNK // 4 + 5):
        inputs = values_of_all(count, torch.float32)
        total = reduced(dist.ReduceOp.SUM, inputs)
        tensor = inputs[rank].clone().to(device())
        dist.all_reduce(tensor)
        compare(tensor, total, ("all_reduce", count))
        for root in range(size):
            tensor = inputs[rank].clone().to(device())
            dist.broadcast(tensor, root)
            compare(tensor, inputs[root], ("broadcast", root, count))
        tensor = inputs[rank].clone().to(device())
        dist.reduce(tensor, 1)
        compare(tensor, total if rank == 1 else inputs[rank], ("reduce", count))
        whole = torch.empty(size * count, device=device())
        dist.all_gather_into_tensor(whole, inputs[rank].clone().to(device()))
        compare(whole, torch.cat(inputs), ("all_gather", count))
        mine = torch.empty(count, device=device())
        dist.reduce_scatter_tensor(mine, torch.cat([value * (rank + 1) for value in inputs]).to(device()))
        compare(mine, inputs[rank] * sum(range(1, size + 1)), ("reduce_scatter", count))


def uneven_sizes(rank: int) -> None:
    size = dist.get_world_size()
    for base in (0, 3, 70_001):
        counts = [base * (1 + each % 3) if each % 4 != 3 else 0 for each in range(size)]
        inputs = [values_of_all(counts[each], torch.float32)[each] for each in range(size)]
        outputs = [torch.empty(count, device=device()) for count in counts]
        dist.all_gather(outputs, inputs[rank].clone().to(device()))
        for found, expected in zip(outputs, inputs, strict=True):
            compare(found, expected, ("all_gather", counts))
        mine = torch.empty(counts[rank], device=device())
        dist.reduce_scatter(mine, [(each * (rank + 1)).to(device()) for each in inputs])
        compare(mine, inputs[rank] * sum(range(1, size + 1)), ("reduce_scatter", counts))


def interleave(rank: int) -> None:
    """Many operations at once on one group, with CPU tensors, device tensors and objects."""
    size = dist.get_world_size()
    works = []
    for turn in range(6):
        count = (1, 40_000, 700_000)[turn % 3]
        on_device = torch.full((count,), float(rank + turn), device=device())
        on_host = torch.full((count,), float(rank - turn))
        works.append((dist.all_reduce(on_device, async_op=True), on_device, sum(range(size)) + size * turn))
        works.append((dist.all_reduce(on_host, async_op=True), on_host, sum(range(size)) - size * turn))
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, ("turn", turn, rank))
        assert objects == [("turn", turn, each) for each in range(size)]
    for work, tensor, expected in works:
        work.wait()
        assert tensor.eq(expected).all().item()


def the_library_does_it(rank: int) -> None:
    """Inside an island no part of a large tensor passes over Atoll's own links."""
    before = atoll.time_split()
    tensor = torch.ones(1 << 20, device=device())
    for _ in range(3):
        dist.all_reduce(tensor)
    split = atoll.time_split()
    island = next(each for each in atoll.layout() if rank in each.ranks)
    inside = split["bytes_inside"] - before["bytes_inside"]
    assert (inside == 0) == (island.library != "atoll" or len(island.ranks) == 1), (island, inside)
    assert split["bytes_bridge"] - before["bytes_bridge"] > 0


def all_hold_the_same_bits(rank: int) -> bytes:
    torch.manual_seed(rank)
    tensor = torch.randn(300_007).to(device())
    dist.all_reduce(tensor)
    return tensor.cpu().numpy().tobytes()


JOBS = [reduce_all_types, reduce_in_other_ways, sizes_at_the_borders, uneven_sizes, interleave, the_library_does_it]


@pytest.mark.parametrize(("libraries", "job"), crossed(LAYOUTS, JOBS), indirect=["libraries"])
def test_with_libraries(libraries: Ranks, job: Any) -> None:
    libraries.run(job)


# Proves C-1 and C-2.
def test_all_ranks_hold_the_same_bits(libraries: Ranks) -> None:
    first, *others = libraries.run(all_hold_the_same_bits)
    assert all(other == first for other in others)
    assert libraries.run(all_hold_the_same_bits)[0] == first


def sum_flat(rank: int) -> bytes:
    torch.manual_seed(rank)
    tensor = torch.randn(10_007).to(device())
    dist.all_reduce(tensor)
    return tensor.cpu().numpy().tobytes()


def test_flat_reductions_leave_libraries_out() -> None:
    """Flat reductions give the same bits on every layout and device."""
    results = set()
    for islands, devices in (("AAAA", ["cpu"] * 4), ("AABB", ["sim", "sim", "cpu", "cpu"]), ("AAAA", ["sim"] * 4)):
        ranks = Ranks(4, list(islands), {"ATOLL_REDUCE": "flat", "ATOLL_INNER": "cpu:gloo"}, devices)
        try:
            results.update(ranks.run(sum_flat))
        finally:
            ranks.stop()
    assert len(results) == 1


def give_strided(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.full((40, 30), float(rank), device=device()).t()
    dist.all_reduce(tensor)
    assert tensor.eq(sum(range(size))).all().item()
    work = dist.all_reduce(torch.ones(9, 7, device=device())[:, ::2], async_op=True)
    work.wait()
    parts = [torch.empty(3, 5, device=device()).t() for _ in range(size)]
    dist.all_gather(parts, torch.full((5, 3), float(rank), device=device()))
    assert [part[0, 0].item() for part in parts] == list(range(size))


def coalesce(rank: int) -> None:
    size = dist.get_world_size()
    tensors = [torch.full((count,), float(rank), device=device()) for count in (5, 1000, 70_000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(tensor.eq(sum(range(size))).all().item() for tensor in tensors)
    unlike = [torch.full((6000,), 2, dtype=dtype, device=device()) for dtype in (torch.float32, torch.int16)]
    # Libraries do not support the second type.
    dist.group.WORLD.allreduce_coalesced(unlike, dist.AllreduceCoalescedOptions()).wait()
    assert all(tensor.eq(2 * size).all().item() for tensor in unlike)
    to, source = (rank + 1) % size, (rank - 1) % size
    incoming = [torch.empty(3000, device=device()) for _ in range(2)]
    ops = [dist.P2POp(dist.irecv, tensor, source) for tensor in incoming]
    ops += [
        dist.P2POp(dist.isend, torch.full((3000,), float(rank + 10 * turn), device=device()), to) for turn in range(2)
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert [tensor[0].item() for tensor in incoming] == [source, source + 10]


def release_tensors(rank: int) -> None:
    """Tensors whose messages used the library and the bridge in one region are released as soon as they are not
    needed."""
    size = dist.get_world_size()
    tensors = [torch.full((3000,), float(rank), device=device()), torch.empty(3000, device=device())]
    ops = [
        dist.P2POp(dist.isend, tensors[0], (rank + 1) % size),
        dist.P2POp(dist.irecv, tensors[1], (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert tensors[1][0].item() == (rank - 1) % size
    kept = [weakref.ref(tensor) for tensor in tensors]
    del tensors, ops, work
    eventually(lambda: not any(tensor() is not None for tensor in kept), "tensors are released")


def destroy_at_once(rank: int) -> None:
    """Issued operations end as their peers expect, also while the thread that calls the library is busy."""
    group = dist.new_group()
    busy, released = threading.Event(), threading.Event()

    def callback(_: Any) -> None:
        busy.set()
        released.wait(10)

    if rank != 2:
        first = dist.broadcast(torch.ones(1), 2, group=group, async_op=True)
        first.get_future().then(callback)
    dist.barrier()
    if rank == 2:
        dist.broadcast(torch.ones(1), 2, group=group)
    else:
        assert busy.wait(10)
    value = torch.full((5003,), float(rank), device=device())
    work = dist.broadcast(value, 2, group=group, async_op=True)
    dist.destroy_process_group(group)
    released.set()
    work.wait()
    assert torch.equal(value.cpu(), torch.full((5003,), 2.0))


def give_wrong_arguments(rank: int) -> None:
    with raises(ValueError, "root", "99"):
        options = dist.BroadcastOptions()
        options.rootRank = 99
        dist.group.WORLD._get_backend(torch.device(device())).broadcast([torch.ones(3, device=device())], options)
    with raises(ValueError, "reduce_scatter_tensor", "elements"):
        dist.reduce_scatter_tensor(torch.empty(3, device=device()), torch.ones(4, device=device()))
    tensor = torch.ones(3, device=device())
    dist.all_reduce(tensor)
    assert tensor[0].item() == dist.get_world_size()


def average_with_a_library_that_only_adds(rank: int) -> None:
    size = dist.get_world_size()
    group = group_of_library("sum")
    for count in (7, 300_007):
        for dtype in (torch.float32, torch.int64):
            inputs = values_of_all(count, dtype)
            tensor = inputs[rank].clone().to(device())
            dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
            compare(tensor, reduced(dist.ReduceOp.AVG, inputs), ("avg", dtype, count))
            mine = torch.empty(count, dtype=dtype, device=device())
            dist.reduce_scatter_tensor(mine, torch.cat(inputs).to(device()), dist.ReduceOp.AVG, group=group)
            compare(mine, inputs[rank], ("reduce_scatter avg", dtype, count))
        inputs = values_of_all(count, torch.float32)
        tensor, whole = inputs[rank].clone().to(device()), torch.cat(inputs).to(device())
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5), group=group)
        compare(tensor, 0.5 * reduced(dist.ReduceOp.SUM, inputs), ("premul", count))
        mine = torch.empty(count, device=device())
        dist.reduce_scatter_tensor(mine, whole, dist._make_nccl_premul_sum(0.5), group=group)
        compare(mine, 0.5 * size * inputs[rank], ("reduce_scatter premul", count))
        compare(whole, torch.cat(inputs), "the input is left as it was")
    dist.destroy_process_group(group)


@pytest.fixture(params=["cpu", "sim"], scope="module")
def one_island(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    ranks = Ranks(3, ["A"] * 3, GLOO, [request.param] * 3)
    yield ranks
    ranks.stop()


@pytest.mark.parametrize(
    "job",
    [
        reduce_all_types,
        reduce_in_other_ways,
        uneven_sizes,
        interleave,
        give_strided,
        coalesce,
        release_tensors,
        give_wrong_arguments,
        average_with_a_library_that_only_adds,
    ],
)
def test_one_island(one_island: Ranks, job: Any) -> None:
    one_island.run(job)


@pytest.mark.parametrize("job", [give_strided, coalesce, release_tensors, destroy_at_once, give_wrong_arguments])
def test_several_islands(libraries: Ranks, job: Any) -> None:
    libraries.run(job)


def take_futures(rank: int) -> None:
    """Requests a future, which holds Python's lock, while the last reference to a tensor ends, which needs that
    lock."""
    until = time.monotonic() + 1.0
    rounds = torch.zeros((), device=device())
    while not torch.is_nonzero(rounds):
        for _ in range(200):
            tensor = torch.ones(1, device=device())
            work = dist.all_reduce(tensor, async_op=True)
            del tensor
            work.get_future()
            del work
        rounds = torch.full((), float(time.monotonic() > until), device=device())
        dist.all_reduce(rounds)


def test_futures_while_results_are_released(one_island: Ranks) -> None:
    one_island.run(take_futures)


def outlive_the_group(rank: int) -> list[str]:
    """Returns the threads of Atoll that are left while a Work still exists."""
    work = dist.all_reduce(torch.ones(1, device=device()), async_op=True)
    work.wait()
    dist.destroy_process_group()
    deadline = time.monotonic() + 10
    while (left := threads_of_atoll()) and time.monotonic() < deadline:
        time.sleep(0.01)  # the system lists a joined thread for a moment longer
    assert work.is_completed()
    return left


def test_a_work_that_outlives_its_group_keeps_no_thread() -> None:
    ranks = Ranks(2, ["A"] * 2, {}, ["sim"] * 2)
    try:
        assert ranks.run(outlive_the_group) == [[], []]
    finally:
        ranks.stop()
