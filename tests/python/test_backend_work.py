# SPDX-License-Identifier: Apache-2.0
"""Work objects: asynchronous calls, futures, time limits, messages in any order, coalescing, profiling."""

import itertools
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from support import Ranks, raises


def check_async(rank: int) -> None:
    size = dist.get_world_size()
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 1000, 300_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for tensor, work in zip(tensors, works, strict=True):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensor or torch.equal(work.result()[0], tensor)
        assert (tensor == sum(range(size)) + size * tensor.numel()).all()
    strided = torch.full((4, 6), float(rank)).t()
    work = dist.all_reduce(strided, async_op=True)
    work.wait()
    assert (strided == sum(range(size))).all()


def check_result_before_completion(rank: int) -> None:
    tensor = torch.zeros(1)
    work = dist.irecv(tensor, 1) if rank == 0 else None
    if work is not None:
        with raises(RuntimeError, "before calling result()"):
            work.result()
        with raises(RuntimeError, "completed receive"):
            work._source_rank()
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0)
    if work is not None:
        work.wait()
        assert work._source_rank() == 1


def check_futures(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.full((10,), float(rank))
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: [2 * done.value()[0]])
    assert (doubled.wait()[0] == 2 * sum(range(size))).all()
    assert isinstance(future.value(), list)
    late = dist.broadcast(tensor, 0, async_op=True)
    late.wait()
    assert torch.equal(late.get_future().value()[0], tensor)
    gathered = [torch.empty(1) for _ in range(size)]
    work = dist.all_gather(gathered, torch.tensor([float(rank)]), async_op=True)
    assert [t.item() for t in work.get_future().wait()] == list(range(size))
    assert dist.barrier(async_op=True).get_future().wait() == []


def check_callbacks_that_wait(rank: int) -> None:
    """A callback may issue the next operation and wait for it, as communication hooks do."""
    size = dist.get_world_size()

    def reduce_again(done: torch.futures.Future) -> torch.Tensor:
        again = done.value()[0].clone()
        return dist.all_reduce(again, async_op=True).get_future().wait()[0]

    futures = []
    for _ in range(5):
        work = dist.all_reduce(torch.full((3,), float(rank)), async_op=True)
        futures.append(work.get_future().then(reduce_again).then(lambda done: done.value() + 1))
        expected = sum(range(size)) * size + 1
        assert (futures[-1].wait() == expected).all()


def check_wait_timeout(rank: int) -> None:
    tensor = torch.zeros(1)
    if rank == 0:
        work = dist.irecv(tensor, 1)
        with raises(dist.DistBackendError, "Timed out", "50ms", "recv"):
            work.wait(timedelta(milliseconds=50))
        assert not work.is_completed()
    dist.barrier()
    if rank == 1:
        dist.send(torch.tensor([4.0]), 0)
    if rank == 0:
        assert work.wait(timedelta(seconds=30))
        assert tensor.item() == 4


def check_messages(rank: int) -> None:
    size = dist.get_world_size()
    for numel in (0, 1, 5000, 700_000):
        sends = [
            dist.isend(torch.full((numel,), float(10 * rank + other)), other) for other in range(size) if other != rank
        ]
        buffers = {other: torch.empty(numel) for other in range(size) if other != rank}
        for other in reversed(buffers):
            dist.recv(buffers[other], other)
            assert (buffers[other] == 10 * other + rank).all()
        for work in sends:
            work.wait()


def check_tags(rank: int) -> None:
    if rank == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (3, 1, 2)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (1, 2, 3):
            tensor = torch.zeros(1)
            dist.recv(tensor, 0, tag=tag)
            assert tensor.item() == tag


def check_any_source(rank: int) -> None:
    size = dist.get_world_size()
    if rank:
        dist.send(torch.tensor([float(rank)]), 0)
        return
    seen = set()
    for _ in range(size - 1):
        tensor = torch.zeros(1)
        source = dist.recv(tensor)
        assert source == tensor.item()
        seen.add(source)
    assert seen == set(range(1, size))


def check_strided_messages(rank: int) -> None:
    if rank == 0:
        dist.send(torch.arange(12.0).reshape(3, 4).t(), 1)
    elif rank == 1:
        whole = torch.full((4, 6), -1.0)
        dist.recv(whole[:, ::2], 0)
        assert torch.equal(whole[:, ::2], torch.arange(12.0).reshape(3, 4).t())
        assert (whole[:, 1::2] == -1).all()


def check_batches(rank: int) -> None:
    """Sends and receives in a batch work in any order, also if the ranks' orders differ."""
    size = dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    for numel, order in itertools.product((1, 200_000), itertools.permutations(range(4))):
        out = [torch.full((numel,), float(rank)), torch.full((numel,), float(rank) + 100)]
        into = [torch.empty(numel), torch.empty(numel)]
        operations = [
            dist.P2POp(dist.isend, out[0], right, tag=1),
            dist.P2POp(dist.irecv, into[0], left, tag=1),
            dist.P2POp(dist.isend, out[1], left, tag=2),
            dist.P2POp(dist.irecv, into[1], right, tag=2),
        ]
        shift = order if rank % 2 else order[::-1]
        works = dist.batch_isend_irecv([operations[i] for i in shift])
        assert len(works) == 1  # one for the whole batch
        works[0].wait()
        assert (into[0] == left).all()
        assert (into[1] == right + 100).all()


def check_coalescing(rank: int) -> None:
    size = dist.get_world_size()
    tensors = [torch.full((n,), float(rank)) for n in (1, 2, 3)]
    with distributed_c10d._coalescing_manager(async_ops=True) as region:
        for tensor in tensors:
            dist.all_reduce(tensor)
    region.wait()
    assert all((tensor == sum(range(size))).all() for tensor in tensors)
    outputs = [torch.empty(size * n) for n in (1, 2)]
    with distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        for n, output in zip((1, 2), outputs, strict=True):
            dist.all_gather_into_tensor(output, torch.full((n,), float(rank)))
    assert torch.equal(outputs[1], torch.arange(float(size)).repeat_interleave(2))
    parts = [torch.empty(n) for n in (1, 2)]
    with distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        for n, part in zip((1, 2), parts, strict=True):
            dist.reduce_scatter_tensor(part, torch.ones(size * n))
    assert all((part == size).all() for part in parts)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    backend._end_coalescing().wait()  # an empty region
    with raises(RuntimeError, "has not started"):
        backend._end_coalescing()


def check_many_outstanding(rank: int) -> None:
    size = dist.get_world_size()
    tensors = [torch.full((100,), float(rank + i)) for i in range(300)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for i, tensor in enumerate(tensors):
        assert (tensor == sum(range(size)) + size * i).all()
    # Works may be dropped; the tensors stay alive until the operation is done.
    for _ in range(50):
        dist.all_reduce(torch.ones(5000), async_op=True)
    dist.barrier()


def check_sequence_numbers(rank: int) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._set_sequence_number_for_group()
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert backend._get_sequence_number_for_group() == before + 2


def check_profiler(rank: int) -> None:
    size = dist.get_world_size()
    tensor = torch.ones(16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.all_gather([torch.empty(16) for _ in range(size)], tensor)
        dist.barrier()
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
    names = [event.name for event in profiler.events()]
    assert names.count("atoll:all_reduce") == 2
    assert "atoll:all_gather" in names
    assert "atoll:barrier" in names
    assert rank > 1 or ("atoll:send" if rank == 0 else "atoll:recv") in names
    shapes = next(event.input_shapes for event in profiler.events() if event.name == "atoll:all_reduce")
    assert shapes == [[16]]


CHECKS: list[Callable[..., None]] = [
    check_async,
    check_result_before_completion,
    check_futures,
    check_callbacks_that_wait,
    check_wait_timeout,
    check_messages,
    check_tags,
    check_any_source,
    check_strided_messages,
    check_batches,
    check_coalescing,
    check_many_outstanding,
    check_sequence_numbers,
    check_profiler,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_work(any_ranks: Ranks, check: Callable[..., None]) -> None:
    any_ranks.run(check)
