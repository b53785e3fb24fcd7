# SPDX-License-Identifier: Apache-2.0
"""simccl refuses wrong calls, reports errors on all ranks, and never hangs."""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from simccl_suite import LONG, backend, fresh_group, group, store
from support import RankError, Ranks, raises

Op = dist.ReduceOp
Failed = dist.DistBackendError


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


def test_wrong_arguments_are_refused_before_anything_is_issued(two_on_sim: Ranks) -> None:
    two_on_sim.run(wrong_calls)


def foreign_dtypes(rank: int) -> None:
    where = group()
    for dtype in (torch.int16, torch.complex64):
        tensor = torch.ones(4, dtype=dtype, device="sim")
        with raises(TypeError, "broadcast", "has no dtype"):
            backend(where).broadcast([tensor], dist.BroadcastOptions())
        with raises(RuntimeError, "all_to_all", "has no dtype"):
            backend(where).alltoall([tensor[:2], tensor[2:]], [tensor[:2], tensor[2:]], dist.AllToAllOptions())


def test_dtypes_that_nccl_lacks_are_refused_as_pytorch_does(two_on_sim: Ranks) -> None:
    two_on_sim.run(foreign_dtypes)


def different_calls(rank: int, where: dist.ProcessGroup) -> None:
    tensor = torch.ones(3 + rank, device="sim")
    work = dist.all_reduce(tensor, group=where, async_op=True)
    for _ in range(2):
        with raises(Failed, "all_reduce, sequence 0", f"on rank {rank}", "3 elements", "4 elements", "rank 1 called"):
            work.wait(LONG)
    assert work.is_completed()
    assert not work.is_success()
    with raises(Failed, "failed earlier", "ranks called different things"):
        dist.all_reduce(tensor, group=where)


def never_comes(rank: int, where: dist.ProcessGroup) -> None:
    if rank == 1:
        store().wait(["timed out"], LONG)
        with raises(Failed, "failed earlier", "rank 0 timed out"):
            dist.barrier(group=where)
        return
    with raises(Failed, "barrier, sequence 0", "on rank 0", "after 200 ms waiting for rank 1 to call it"):
        dist.barrier(group=where)
    store().set("timed out", "")


def aborts(rank: int) -> None:
    where = fresh_group(60)
    if rank == 1:
        store().wait(["aborted"], LONG)
        with raises(Failed, "abort() was called on rank 0"):
            dist.all_reduce(torch.ones(1, device="sim"), group=where)
        return
    work = dist.all_reduce(torch.ones(1, device="sim"), group=where, async_op=True)
    inbox = dist.irecv(torch.ones(1, device="sim"), 1, group=where)
    assert inbox is not None
    assert not work.is_completed()
    thread = threading.Thread(target=backend(where).abort)
    thread.start()
    for waiting in (work, inbox):
        with raises(Failed, "abort() was called on rank 0"):
            waiting.wait(LONG)
    thread.join()
    store().set("aborted", "")


def test_abort_wakes_every_waiter(two_on_sim: Ranks) -> None:
    two_on_sim.run(aborts)


def shuts_down(rank: int, where: dist.ProcessGroup) -> None:
    tensor = torch.ones(1, device="sim")
    work = dist.all_reduce(tensor, group=where, async_op=True)
    left = f"left/{rank}"
    if rank == 1:
        closing = backend(where)
        closing.shutdown()
        store().set(left, "")
        assert work.is_completed(), "issued operations complete"
        assert tensor.item() == 2
        with raises(Failed, "shut down on rank 1"):
            closing.barrier().wait()
        return
    work.wait()
    store().wait(["left/1"], LONG)
    with raises(Failed, "sequence 1", "needs rank 1 to call it", "has left the group"):
        dist.all_reduce(tensor, group=where, async_op=True).wait(LONG)


# A failed operation blocks its stream for seconds, as on a device, so these run concurrently, each in its own group.
FAILURES = [different_calls, never_comes, shuts_down]


def fail_side_by_side(rank: int) -> dict[str, str]:
    """Returns the error of each."""
    problems: dict[str, str] = {}

    def go(body: Callable[[int, dist.ProcessGroup], None], where: dist.ProcessGroup) -> None:
        try:
            body(rank, where)
        except BaseException:
            problems[body.__name__] = traceback.format_exc()

    # Rank 0 alone has a short limit, and no other rank enters its barrier.
    groups = [fresh_group(0.2 if body is never_comes and rank == 0 else 60) for body in FAILURES]
    threads = [threading.Thread(target=go, args=pair) for pair in zip(FAILURES, groups, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


@pytest.fixture(scope="module")
def problems(two_on_sim: Ranks) -> list[dict[str, str]]:
    found: list[dict[str, str]] = two_on_sim.run(fail_side_by_side)
    return found


@pytest.mark.parametrize("body", FAILURES, ids=lambda body: body.__name__)
def test_errors_are_raised_on_all_ranks(problems: list[dict[str, str]], body: Callable[..., None]) -> None:
    assert [each.get(body.__name__) for each in problems] == [None, None]


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


def test_groups_that_end_give_back_their_threads(two_on_sim: Ranks) -> None:
    # A stream that was not idle yet is not reused, so there may be a few more; ten groups use thirty or more.
    assert max(two_on_sim.run(many_groups)) < 10


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


def test_survivors_learn_which_rank_died(three_on_sim: Ranks) -> None:
    with pytest.raises(RankError) as caught:
        three_on_sim.run(dies)
    assert str(caught.value) == "rank 1: the process ended with code -9"


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
                from atoll import _sim

                _sim.ProcessGroupSimccl(dist.PrefixStore(f"bad/{rank}", store()), 0, 1, LONG)
        finally:
            del os.environ[name]


def test_settings_that_do_not_parse_are_named(two_on_sim: Ranks) -> None:
    two_on_sim.run(bad_settings)
