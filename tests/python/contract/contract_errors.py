# SPDX-License-Identifier: Apache-2.0
"""The contract: errors are raised in time, and groups that are not affected go on."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from contract_member import LIMIT, Member

SHORT = timedelta(milliseconds=300)
ERRORS = (RuntimeError, ValueError, TypeError)


def raised(call: Callable[[], object], kinds: Any = ERRORS) -> str:
    """Returns the text of the call's error, which must be one of `kinds`."""
    try:
        call()
    except kinds as error:
        return str(error)
    raise AssertionError("no exception")


def check_group(me: Member, group: dist.ProcessGroup | None = None) -> None:
    tensor = torch.ones(5, device=me.device)
    dist.all_reduce(tensor, group=group)
    me.check(bool((tensor.cpu() == me.size).all()), f"the sum of ones is {tensor}")


def wrong_arguments(me: Member) -> None:
    """Wrong arguments are refused on the calling rank, before anything is sent; the group is unharmed."""
    one = torch.ones(4, device=me.device)
    backend = dist.group.WORLD._get_backend(torch.device(me.device))  # torch.distributed itself refuses a lot

    def root_outside() -> None:
        options = dist.BroadcastOptions()
        options.rootRank = me.size
        backend.broadcast([one], options).wait()

    def two_dtypes() -> None:
        backend.allgather([[one.double() for _ in range(me.size)]], [one]).wait()

    def too_many_outputs() -> None:
        backend.allgather([[torch.ones_like(one) for _ in range(me.size + 1)]], [one]).wait()

    def flat_gather_of_wrong_size() -> None:
        dist.all_gather_into_tensor(torch.ones(4 * me.size + 1, device=me.device), one)

    def flat_scatter_of_wrong_size() -> None:
        dist.reduce_scatter_tensor(one, torch.ones(4 * me.size + 1, device=me.device))

    def splits_that_do_not_add_up() -> None:
        tensor = torch.ones(me.size, device=me.device)
        dist.all_to_all_single(tensor, tensor.clone(), [2] * me.size, [1] * me.size)

    def rows_that_cannot_be_divided() -> None:
        tensor = torch.ones(me.size + 1, device=me.device)
        dist.all_to_all_single(tensor, tensor.clone())

    def bits_of_floats() -> None:
        dist.all_reduce(one, dist.ReduceOp.BAND)

    def no_values() -> None:
        backend.allreduce([torch.ones(4, device="meta")]).wait()

    def to_itself() -> None:
        dist.send(one, me.rank)

    calls = [root_outside, two_dtypes, too_many_outputs, flat_gather_of_wrong_size, flat_scatter_of_wrong_size,
             splits_that_do_not_add_up, bits_of_floats, no_values, to_itself]  # fmt: skip
    if me.size > 1:
        calls.append(rows_that_cannot_be_divided)
    for call in calls:

        def body(call: Callable[[], None] = call) -> None:
            raised(call)
            check_group(me)

        me.case(call.__name__.replace("_", " "), body)


def limited(me: Member, limit: timedelta) -> dist.ProcessGroup:
    """Returns a group whose calls have that limit; creating it has the usual one. Gloo's receives keep the limit
    with which their group was made, so there one longer limit is used for both."""
    if dist.get_backend() == "gloo":
        return me.group(2)
    group = me.group()
    group._get_backend(torch.device(me.device)).set_timeout(limit)
    return group


def time_limits(me: Member) -> None:
    """A rank that never enters a call causes an exception on the waiting ranks, in time; later calls of that group
    raise at once, and other groups go on."""
    last = me.size - 1

    def check(call: Callable[[dist.ProcessGroup], object], waits: bool) -> None:
        group = limited(me, SHORT)
        if waits:
            begin = time.monotonic()
            raised(lambda: call(group), RuntimeError)
            took = time.monotonic() - begin
            me.check(took < 8, f"raised after {took:.1f} s")
            begin = time.monotonic()
            raised(lambda: dist.all_reduce(torch.ones(1, device=me.device), group=group), RuntimeError)
            took = time.monotonic() - begin
            me.check(took < 8, f"the next call raised after {took:.1f} s")
        me.meet(f"time limit of {call.__name__}")
        check_group(me)

    def all_reduce(group: dist.ProcessGroup) -> None:
        dist.all_reduce(torch.ones(3, device=me.device), group=group)

    def all_reduce_async(group: dist.ProcessGroup) -> None:
        work = dist.all_reduce(torch.ones(3, device=me.device), group=group, async_op=True)
        work.wait()
        torch.ones(1, device=me.device).item()

    def all_gather(group: dist.ProcessGroup) -> None:
        dist.all_gather_into_tensor(torch.ones(3 * me.size, device=me.device), torch.ones(3, device=me.device), group)

    def barrier(group: dist.ProcessGroup) -> None:
        dist.barrier(group)

    def recv(group: dist.ProcessGroup) -> None:
        dist.recv(torch.ones(3, device=me.device), last, group=group)

    if me.size > 1:
        for call in (all_reduce, all_reduce_async, all_gather, barrier, recv):
            me.case(call.__name__.replace("_", " "), lambda call=call: check(call, me.rank == 0))


def limits_of_waiting(me: Member) -> None:
    """A wait that gives up leaves the operation and its group as they are."""

    def check(group: dist.ProcessGroup) -> None:
        tensor = torch.full((3,), float(me.rank), device=me.device)
        if me.rank == 0:
            work = dist.all_reduce(tensor, group=group, async_op=True)
            raised(lambda: work.wait(SHORT), RuntimeError)
            me.meet("limit of waiting")
        else:
            me.meet("limit of waiting")
            work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait(LIMIT)
        me.check(bool((tensor.cpu() == sum(range(me.size))).all()), tensor)
        check_group(me, group)

    if me.size > 1:
        me.case("all_reduce", lambda: check(me.group()))


def mismatches(me: Member) -> None:
    """Ranks that call different things all get an exception, before any limit; other groups go on."""
    odd = me.rank == me.size - 1

    def check(call: Callable[[dist.ProcessGroup], object]) -> None:
        group = me.group(3)
        check_group(me, group)
        me.meet(f"before the mismatch of {call.__name__}")
        begin = time.monotonic()

        def calls() -> None:
            call(group)
            for _ in range(3):  # a rank that only sends may notice the difference in a later call
                dist.barrier(group)

        raised(calls, RuntimeError)
        took = time.monotonic() - begin
        me.check(took < 2.5, f"raised after {took:.1f} s")
        me.meet(f"mismatch of {call.__name__}")
        check_group(me)

    def ones(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(count, dtype=dtype, device=me.device)

    def shape(group: dist.ProcessGroup) -> None:
        dist.all_reduce(ones(12 if odd else 4), group=group)

    def dtype(group: dist.ProcessGroup) -> None:
        dist.all_reduce(ones(4, torch.int32 if odd else torch.float32), group=group)

    def reduction(group: dist.ProcessGroup) -> None:
        dist.all_reduce(ones(4), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM, group=group)

    def operation(group: dist.ProcessGroup) -> None:
        if odd:
            dist.broadcast(ones(4), src=0, group=group)
        else:
            dist.all_reduce(ones(4), group=group)

    def root(group: dist.ProcessGroup) -> None:
        dist.broadcast(ones(4), src=me.size - 1 if odd else 0, group=group)

    if me.size > 1:
        for call in (shape, dtype, reduction, operation, root):
            me.case(call.__name__, lambda call=call: check(call))


def ends_of_groups(me: Member) -> None:
    def abort() -> None:
        """Wakes every waiter at once; other groups go on."""
        group = me.group(3)
        check_group(me, group)
        me.meet("before the abort")  # until then other ranks may be inside the sum
        if me.rank == 0:
            work = dist.irecv(torch.ones(1, device=me.device), me.size - 1, group=group)
            group._get_backend(torch.device(me.device)).abort()
            assert work is not None
            begin = time.monotonic()
            raised(work.wait, RuntimeError)
            took = time.monotonic() - begin
            me.check(took < 2.5, f"raised after {took:.1f} s")
        me.meet("abort")
        check_group(me)

    def use_after_destroy() -> None:
        group = me.group()
        backend = group._get_backend(torch.device(me.device))
        check_group(me, group)
        me.meet("before destroying")
        dist.destroy_process_group(group)
        raised(lambda: backend.allreduce([torch.ones(1, device=me.device)]).wait(), RuntimeError)
        check_group(me)

    if me.size > 1:
        me.case("abort", abort)
    me.case("use after destroy", use_after_destroy)


PROPERTIES = [wrong_arguments, time_limits, limits_of_waiting, mismatches, ends_of_groups]
