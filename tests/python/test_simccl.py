# SPDX-License-Identifier: Apache-2.0
"""The simulated device's own collective library: right results, streams and modelled times."""

import contextlib
import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simccl_suite
from simccl_suite import LONG, data, expect, fresh_group, group, on_sim, ranks_on_sim, reduced, store
from support import Ranks, later, raises

Op = dist.ReduceOp
Failed = dist.DistBackendError


@pytest.fixture(scope="module")
def one() -> Iterator[Ranks]:
    yield from ranks_on_sim(1)


@pytest.fixture(scope="module")
def shaken() -> Iterator[Ranks]:
    """Three ranks whose operations take random times and overtake each other."""
    yield from ranks_on_sim(3, ATOLL_SIM_DELAY="0.002", ATOLL_SIM_REORDER="1", ATOLL_SIM_SEED="7")


@pytest.mark.parametrize("name", simccl_suite.ALL)
@pytest.mark.parametrize("ranks", ["one", "two_on_sim", later("three_on_sim")])
def test_results_are_those_of_the_reference(request: pytest.FixtureRequest, ranks: str, name: str) -> None:
    request.getfixturevalue(ranks).run(simccl_suite.ALL[name])


# Proves M-5.
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


@pytest.mark.parametrize("ranks", ["three_on_sim", "shaken"])
def test_operations_that_share_memory_stay_in_order(request: pytest.FixtureRequest, ranks: str) -> None:
    request.getfixturevalue(ranks).run(chain_of_overlapping_operations)


def overtaking(rank: int) -> bool:
    """Returns whether a later operation ended before one that was issued earlier."""
    tensors = [torch.ones(1, device="sim") for _ in range(60)]
    works = [dist.all_reduce(tensor, group=group(), async_op=True) for tensor in tensors]
    seen = False
    while not all(work.is_completed() for work in reversed(works)):
        done = [work.is_completed() for work in works]
        seen = seen or any(not early and late for early, late in itertools.pairwise(done))
    assert all(tensor.item() == 3 for tensor in tensors)
    return seen


def test_reordered_operations_overtake_each_other(shaken: Ranks) -> None:
    assert any(shaken.run(overtaking))


def host_runs_ahead(rank: int) -> None:
    where = group()
    tensor = torch.full((3,), float(rank + 1), device="sim")
    if rank == 1:
        store().wait(["ahead"], LONG)
    work = dist.all_reduce(tensor, group=where, async_op=True)
    work.wait()
    if rank == 0:
        assert not work.is_completed()
        store().set("ahead", "")
    assert tensor.tolist() == [3.0] * 3
    assert work.is_completed()
    assert work.is_success()


def test_waiting_blocks_the_stream_and_not_the_host(two_on_sim: Ranks) -> None:
    two_on_sim.run(host_runs_ahead)


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


def test_operations_follow_the_stream_they_were_issued_on(two_on_sim: Ranks) -> None:
    two_on_sim.run(uses_side_streams)


def forwards(rank: int) -> None:
    where = group()
    tensor = torch.full((3,), float(rank + 1), device="sim")
    if rank == 0:
        dist.all_reduce(tensor, group=where)
        message = dist.isend(tensor, 1, group=where)
        store().set("forwarded", "")
    else:
        store().wait(["forwarded"], LONG)
        inbox = torch.zeros(3, device="sim")
        message = dist.irecv(inbox, 0, group=where)
        dist.all_reduce(tensor, group=where)
    assert message is not None
    message.wait()
    if rank == 1:
        assert inbox.tolist() == [3.0] * 3


def test_an_operation_waits_for_what_the_current_stream_holds(two_on_sim: Ranks) -> None:
    two_on_sim.run(forwards)


def use_two_groups(rank: int, alike: bool) -> None:
    groups = [fresh_group(3), fresh_group(3)]
    if not alike and rank == 1:
        groups.reverse()
    works = [dist.all_reduce(torch.ones(10, device="sim"), group=each, async_op=True) for each in groups]
    for work in works:
        assert work is not None
        with contextlib.nullcontext() if alike else raises(RuntimeError, "timed out"):
            work.wait(LONG)


def test_groups_in_different_orders_never_finish_where_the_device_is_full() -> None:
    for serial in ranks_on_sim(2, ATOLL_SIM_SERIAL="1"):
        serial.run(use_two_groups, True)
        serial.run(use_two_groups, False)


def frees_early(rank: int) -> None:
    where = group()
    for step in range(5):
        key = f"freed/{step}"
        output = torch.zeros(2, 50_000, device="sim")
        inputs = torch.full((50_000,), float(10 * rank + step), device="sim")
        if rank == 1:
            store().wait([key], LONG)
        work = dist.all_gather_into_tensor(output, inputs, group=where, async_op=True)
        del inputs
        trash = [torch.full((50_000,), -1.0, device="sim") for _ in range(8)]
        if rank == 0:
            store().set(key, "")
        work.wait()
        expect(output, torch.stack([torch.full((50_000,), float(10 * r + step)) for r in range(2)]), step)
        del trash


def test_tensors_may_be_freed_before_the_peers_have_read_them(two_on_sim: Ranks) -> None:
    two_on_sim.run(frees_early)


def futures(rank: int) -> None:
    tensor = torch.full((4,), float(rank), device="sim")
    seen = (
        dist.all_reduce(tensor, group=group(), async_op=True)
        .get_future()
        .then(lambda done: done.value()[0].mul_(10).clone())
        .wait()
    )
    assert seen.tolist() == [10.0] * 4
    assert tensor.tolist() == [10.0] * 4
    side = torch.sim.Stream()
    with torch.sim.stream(side):
        work = dist.all_reduce(tensor, group=group(), async_op=True)
        work.get_future().wait()
        assert tensor.tolist() == [20.0] * 4
    assert work.result()[0].data_ptr() == tensor.data_ptr()


def test_futures_carry_the_outputs_and_their_streams(two_on_sim: Ranks) -> None:
    two_on_sim.run(futures)


def other_devices(rank: int) -> None:
    where = group()
    # More operations at once than may run at once.
    tensors = [torch.full((3,), float(rank + step), device=f"sim:{(rank + step) % 3}") for step in range(30)]
    if rank == 1:
        store().wait(["issued on all devices"], LONG)
    works = [dist.all_reduce(tensor, group=where, async_op=True) for tensor in tensors]
    if rank == 0:
        store().set("issued on all devices", "")
    for step, work in enumerate(works):
        work.wait(LONG)
        assert tensors[step].tolist() == [2.0 * step + 1] * 3


def test_each_rank_may_use_any_device(two_on_sim: Ranks) -> None:
    two_on_sim.run(other_devices)


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


def test_stock_ddp_trains_on_it(two_on_sim: Ranks) -> None:
    first, second = two_on_sim.run(trains)
    assert first == second


def bare(rank: int) -> None:
    import atoll.sim
    from atoll import _sim

    del atoll
    group_alone = _sim.ProcessGroupSimccl(dist.PrefixStore("alone", store()), rank, 2, LONG)
    tensor = torch.ones(3, device="sim")
    group_alone.allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0] * 3
    again = _sim.ProcessGroupSimccl(dist.PrefixStore("alone", store()), rank, 2, LONG)
    again.allreduce([tensor]).wait()
    assert tensor.tolist() == [4.0] * 3
    if rank == 0:
        lonely = _sim.ProcessGroupSimccl(dist.PrefixStore("lonely", store()), 0, 2, timedelta(milliseconds=200))
        with raises(Failed, "rank 0 timed out waiting for rank 1 to join"):
            lonely.allreduce([tensor])
    for made in (group_alone, again):
        made.shutdown()


def test_it_works_without_a_group_around_it(two_on_sim: Ranks) -> None:
    two_on_sim.run(bare)


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
    for ranks in ranks_on_sim(2, ATOLL_SIM_LINK="100M"):
        assert min(ranks.run(modelled)) >= 40.0  # four times 1 MB at 100 MB/s
