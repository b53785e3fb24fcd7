# SPDX-License-Identifier: Apache-2.0
"""The simulated device's own collective library: right results, streams, errors, faults."""

import os
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import simccl_suite
from simccl_suite import backend, data, expect, fresh_group, group, on_sim, reduced, store
from support import RankError, Ranks, raises

Op = dist.ReduceOp
Failed = dist.DistBackendError
LONG = timedelta(seconds=60)


def _ranks(size: int, **environment: str) -> Iterator[Ranks]:
    ranks = Ranks(size, environment=environment, devices=["sim"] * size)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="module")
def one() -> Iterator[Ranks]:
    yield from _ranks(1)


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    yield from _ranks(2)


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    yield from _ranks(3)


@pytest.fixture(scope="module")
def shaken() -> Iterator[Ranks]:
    """Three ranks whose operations take random times and overtake each other."""
    yield from _ranks(3, ATOLL_SIM_DELAY="0.002", ATOLL_SIM_REORDER="1", ATOLL_SIM_SEED="7")


@pytest.mark.parametrize("name", simccl_suite.ALL)
@pytest.mark.parametrize("ranks", ["one", "two", "three"])
def test_results_are_those_of_the_reference(request: pytest.FixtureRequest, ranks: str, name: str) -> None:
    request.getfixturevalue(ranks).run(simccl_suite.ALL[name])


@pytest.mark.parametrize("name", ["gathers", "coalesced", "messages"])
def test_delays_and_reordering_change_no_result(shaken: Ranks, name: str) -> None:
    shaken.run(simccl_suite.ALL[name])


def chain_of_overlapping_operations(rank: int) -> None:
    whole = on_sim(data(rank, 64, torch.float64))
    wanted = [data(r, 64, torch.float64) for r in range(3)]
    works = []
    for i in range(40):
        first = 7 * i % 32
        part = slice(first, first + 16)
        works.append(dist.all_reduce(whole[part], group=group(), async_op=True))
        total = reduced(Op.SUM, [each[part] for each in wanted])
        for each in wanted:
            each[part] = total
        root = i % 3
        works.append(dist.broadcast(whole[8:24], root, group=group(), async_op=True))
        for each in wanted:
            each[8:24] = wanted[root][8:24].clone()
    for work in works:
        work.wait()
    expect(whole, wanted[rank], "chain")


@pytest.mark.parametrize("ranks", ["three", "shaken"])
def test_operations_that_share_memory_stay_in_order(request: pytest.FixtureRequest, ranks: str) -> None:
    request.getfixturevalue(ranks).run(chain_of_overlapping_operations)


def overtaking(rank: int) -> bool:
    """Whether, of operations that were issued one after the other, a later one ended before an earlier one."""
    tensors = [torch.ones(1, device="sim") for _ in range(60)]
    works = [dist.all_reduce(tensor, group=group(), async_op=True) for tensor in tensors]
    seen = False
    while not all(work.is_completed() for work in reversed(works)):
        done = [work.is_completed() for work in works]
        seen = seen or any(not early and late for early, late in zip(done, done[1:], strict=False))
    assert all(tensor.item() == 3 for tensor in tensors)
    return seen


def test_reordered_operations_overtake_each_other(shaken: Ranks) -> None:
    assert any(shaken.run(overtaking))


def host_runs_ahead(rank: int) -> None:
    tensor = torch.full((3,), float(rank + 1), device="sim")
    if rank == 1:
        store().wait(["ahead"], LONG)
    work = dist.all_reduce(tensor, group=group(), async_op=True)
    work.wait()
    if rank == 0:
        assert not work.is_completed()
        store().set("ahead", "")
    assert tensor.tolist() == [3.0] * 3
    assert work.is_completed() and work.is_success()


def test_waiting_blocks_the_stream_and_not_the_host(two: Ranks) -> None:
    two.run(host_runs_ahead)


def uses_side_streams(rank: int) -> None:
    side = torch.sim.Stream()
    for step in range(20):
        source = torch.full((100_000,), float(step + rank), device="sim")
        side.wait_stream(torch.sim.current_stream())
        with torch.sim.stream(side):
            source.mul_(2)
            work = dist.all_reduce(source, group=group(), async_op=True)
        work.wait()
        expect(source, torch.full((100_000,), 2.0 * (2 * step + 1)), step)


def test_operations_follow_the_stream_they_were_issued_on(two: Ranks) -> None:
    two.run(uses_side_streams)


def frees_early(rank: int) -> None:
    for step in range(5):
        key = f"freed/{step}"
        output = torch.zeros(2, 50_000, device="sim")
        inputs = torch.full((50_000,), float(10 * rank + step), device="sim")
        if rank == 1:
            store().wait([key], LONG)
        work = dist.all_gather_into_tensor(output, inputs, group=group(), async_op=True)
        del inputs
        trash = [torch.full((50_000,), -1.0, device="sim") for _ in range(8)]
        if rank == 0:
            store().set(key, "")
        work.wait()
        expect(output, torch.stack([torch.full((50_000,), float(10 * r + step)) for r in range(2)]), step)
        del trash


def test_tensors_may_be_freed_before_the_peers_have_read_them(two: Ranks) -> None:
    two.run(frees_early)


def futures(rank: int) -> None:
    tensor = torch.full((4,), float(rank), device="sim")
    seen = (
        dist.all_reduce(tensor, group=group(), async_op=True)
        .get_future()
        .then(lambda done: done.value()[0].mul_(10).clone())
        .wait()
    )
    assert seen.tolist() == [10.0] * 4 and tensor.tolist() == [10.0] * 4
    side = torch.sim.Stream()
    with torch.sim.stream(side):
        work = dist.all_reduce(tensor, group=group(), async_op=True)
        work.get_future().wait()
        assert tensor.tolist() == [20.0] * 4
    assert work.result()[0] is tensor or work.result()[0].data_ptr() == tensor.data_ptr()


def test_futures_carry_the_outputs_and_their_streams(two: Ranks) -> None:
    two.run(futures)


def other_devices(rank: int) -> None:
    for step in range(12):  # more than may be under way at once
        tensor = torch.full((3,), float(rank + step), device=f"sim:{(rank + step) % 4}")
        dist.all_reduce(tensor, group=group())
        assert tensor.tolist() == [2.0 * step + 1] * 3


def test_each_rank_may_use_any_device(two: Ranks) -> None:
    two.run(other_devices)


def trains(rank: int) -> list[float]:
    torch.manual_seed(rank)  # DDP makes the parameters equal
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to("sim")
    net = torch.nn.parallel.DistributedDataParallel(net, process_group=group())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        net(on_sim(data(rank, 80, torch.float32, seed=step).view(10, 8))).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).tolist()


def test_stock_ddp_trains_on_it(two: Ranks) -> None:
    first, second = two.run(trains)
    assert first == second


def wrong_calls(rank: int) -> None:
    where = group()
    good = torch.ones(4, device="sim")
    table: list[tuple[Any, list[str]]] = [
        (lambda: dist.all_reduce(torch.ones(4, 4, device="sim").t()[:2], group=where), ["all_reduce", "contiguous"]),
        (lambda: backend(where).allreduce([torch.ones(4)]), ["all_reduce", "device sim", "cpu"]),
        (lambda: dist.all_reduce(good, Op.BAND, group=where), ["all_reduce", "SUM, AVG, PRODUCT", "BAND"]),
        (
            lambda: dist.all_reduce(good, dist._make_nccl_premul_sum(2.0), group=where),
            ["all_reduce", "PREMUL_SUM"],
        ),
        (lambda: dist.all_reduce(good > 0, Op.AVG, group=where), ["no avg", "Bool"]),
        (lambda: backend(where).allreduce([good.to(torch.float8_e5m2)]), ["no sum", "Float8_e5m2"]),
        (lambda: backend(where).allreduce([good, good]), ["must hold one tensor, it holds 2"]),
        (
            lambda: dist.all_gather_into_tensor(torch.ones(9, device="sim"), good, group=where),
            ["all_gather_into_tensor", "9 elements", "2 ranks"],
        ),
        (
            lambda: dist.all_gather_into_tensor(torch.ones(10, device="sim"), good, group=where),
            ["all_gather_into_tensor", "must have 4 elements, it has 5"],
        ),
        (
            lambda: dist.all_to_all_single(torch.ones(4, device="sim"), good, [1, 1], [2, 2], group=where),
            ["output split sizes", "add up to 4"],
        ),
        (lambda: dist.all_to_all_single(good, good, group=where), ["must not share memory"]),
        (
            lambda: backend(where).allgather([[good, good.double()]], [good]),
            ["equal dtypes", "Float", "Double"],
        ),
        (lambda: backend(where).send([good], 2, 0), ["send", "destination 2", "group of 2"]),
    ]
    for call, parts in table:
        with raises(ValueError, *parts):
            call()
    dist.all_reduce(good, group=where)
    assert good.tolist() == [2.0] * 4, "the group is unharmed"


def test_wrong_arguments_are_refused_before_anything_is_issued(two: Ranks) -> None:
    two.run(wrong_calls)


def different_calls(rank: int) -> None:
    where = fresh_group(60)
    tensor = torch.ones(3 + rank, device="sim")
    work = dist.all_reduce(tensor, group=where, async_op=True)
    for _ in range(2):
        with raises(Failed, "all_reduce, sequence 0", f"on rank {rank}", "3 elements", "4 elements", "rank 1 called"):
            work.wait(LONG)
    assert work.is_completed() and not work.is_success()
    with raises(Failed, "failed earlier", "ranks called different things"):
        dist.all_reduce(tensor, group=where)


def test_ranks_that_call_different_things_are_told(two: Ranks) -> None:
    two.run(different_calls)


def never_comes(rank: int) -> None:
    where = fresh_group(0.2 if rank == 0 else 60)
    if rank == 1:
        store().wait(["timed out"], LONG)
        with raises(Failed, "failed earlier", "rank 0 timed out"):
            dist.barrier(group=where)
        return
    with raises(Failed, "barrier, sequence 0", "on rank 0", "after 200 ms waiting for rank 1 to call it"):
        dist.barrier(group=where)
    store().set("timed out", "")


def test_a_missing_rank_is_named_at_the_timeout(two: Ranks) -> None:
    two.run(never_comes)


def aborts(rank: int) -> None:
    where = fresh_group(60)
    if rank == 1:
        store().wait(["aborted"], LONG)
        with raises(Failed, "abort() was called on rank 0"):
            dist.all_reduce(torch.ones(1, device="sim"), group=where)
        return
    work = dist.all_reduce(torch.ones(1, device="sim"), group=where, async_op=True)
    inbox = dist.irecv(torch.ones(1, device="sim"), 1, group=where)
    assert inbox is not None and not work.is_completed()
    thread = threading.Thread(target=backend(where).abort)
    thread.start()
    for waiting in (work, inbox):
        with raises(Failed, "abort() was called on rank 0"):
            waiting.wait(LONG)
    thread.join()
    store().set("aborted", "")


def test_abort_wakes_every_waiter(two: Ranks) -> None:
    two.run(aborts)


def shuts_down(rank: int) -> None:
    where = fresh_group(60)
    tensor = torch.ones(1, device="sim")
    work = dist.all_reduce(tensor, group=where, async_op=True)
    left = f"left/{rank}"
    if rank == 1:
        closing = backend(where)
        closing.shutdown()
        store().set(left, "")
        assert work.is_completed() and tensor.item() == 2, "what was issued is done"
        with raises(Failed, "shut down on rank 1"):
            closing.barrier().wait()
        return
    work.wait()
    store().wait(["left/1"], LONG)
    with raises(Failed, "sequence 1", "needs rank 1 to call it", "has left the group"):
        dist.all_reduce(tensor, group=where, async_op=True).wait(LONG)


def test_shutdown_ends_what_was_issued_and_leaves(two: Ranks) -> None:
    two.run(shuts_down)


def many_groups(rank: int) -> int:
    for step in range(15):
        where = fresh_group(60)
        tensor = torch.ones(1, device="sim")
        dist.all_reduce(tensor, group=where)
        dist.send(tensor, 1, group=where) if rank == 0 else dist.recv(tensor, 0, group=where)
        assert tensor.item() == 2
        dist.destroy_process_group(where)
        if step == 4:
            before = len(os.listdir("/proc/self/task"))
    return len(os.listdir("/proc/self/task")) - before


def test_groups_that_end_give_back_their_threads(two: Ranks) -> None:
    assert max(two.run(many_groups)) <= 0


def dies(rank: int) -> None:
    where = fresh_group(60)
    tensor = torch.ones(1, device="sim")
    dist.all_reduce(tensor, group=where)
    if rank == 1:
        store().wait(["waiting"], LONG)
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(tensor, group=where, async_op=True)
    if rank == 0:
        store().set("waiting", "")
    with raises(Failed, "all_reduce, sequence 1", f"on rank {rank}", "rank 1 (process", "died"):
        work.wait(LONG)


def test_survivors_are_told_who_died(three: Ranks) -> None:
    with pytest.raises(RankError) as caught:
        three.run(dies)
    assert str(caught.value) == "rank 1: the process ended with code -9"


def bare(rank: int) -> None:
    import atoll.sim
    from atoll.sim import process_group

    del atoll
    group_alone = process_group.create(dist.PrefixStore("alone", store()), rank, 2, LONG)
    tensor = torch.ones(3, device="sim")
    group_alone.allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0] * 3
    again = process_group.create(dist.PrefixStore("alone", store()), rank, 2, LONG)
    again.allreduce([tensor]).wait()
    assert tensor.tolist() == [4.0] * 3
    if rank == 0:
        with raises(Failed, "rank 0 timed out waiting for rank 1 to join"):
            process_group.create(dist.PrefixStore("lonely", store()), 0, 2, timedelta(milliseconds=200))
    for made in (group_alone, again):
        made.shutdown()


def test_it_works_without_a_group_around_it(two: Ranks) -> None:
    two.run(bare)


def bad_settings(rank: int) -> None:
    for name, value, text in (
        ("ATOLL_SIM_REORDER", "yes", "must be 0 or 1"),
        ("ATOLL_SIM_DELAY", "100", "at most 60"),
        ("ATOLL_SIM_DELAY", "soon", "must be a number"),
        ("ATOLL_SIM_LINK", "-1", "must be a number that is not negative"),
        ("ATOLL_SIM_SEED", "x", "must be a number"),
    ):
        os.environ[name] = value
        try:
            with raises(ValueError, name, value, text):
                from atoll.sim import process_group

                process_group.create(dist.PrefixStore("bad", store()), 0, 1, LONG)
        finally:
            del os.environ[name]


def test_settings_that_do_not_parse_are_named(one: Ranks) -> None:
    one.run(bad_settings)


def modelled(rank: int) -> float:
    tensor = torch.ones(250_000, device="sim")
    dist.all_reduce(tensor, group=group())
    begin, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    torch.sim.synchronize()
    begin.record()
    for _ in range(4):
        dist.all_reduce(tensor, group=group())
    end.record()
    torch.sim.synchronize()
    return begin.elapsed_time(end)


def test_a_link_of_a_known_rate_takes_its_time() -> None:
    ranks = Ranks(2, environment={"ATOLL_SIM_LINK": "100M"}, devices=["sim"] * 2)
    try:
        assert min(ranks.run(modelled)) >= 40.0  # four times 1 MB at 100 MB/s
    finally:
        ranks.stop()
