# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different operations, or none, are named on all ranks; abort wakes every waiter."""

import itertools
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import atoll
from fault_jobs import Job, Me, expected
from support import crossed, later

PROMPT_S = 2.0


def differ(me: Me, case: str, count: int) -> None:
    """Rank 1 makes a different call than the others."""
    me.join(seconds=30)
    me.check_sum()
    other = me.rank == 1
    tensor = torch.ones(count)
    calls: dict[str, Callable[[], object]] = {
        "shape": lambda: dist.all_reduce(torch.ones(count + 8 if other else count)),
        "dtype": lambda: dist.all_reduce(tensor.int() if other else tensor),
        "reduction": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX if other else dist.ReduceOp.SUM),
        "operation": lambda: dist.broadcast(tensor, src=0) if other else dist.all_reduce(tensor),
        "root": lambda: dist.broadcast(tensor, src=1 if other else 0),
    }
    me.tell("calling")
    calls[case]()
    # The sender of a broadcast does not wait, so a later call may be the one that meets the difference.
    for _ in range(3):
        dist.barrier()


NAMED = {
    "shape": (
        r"all_reduce #\d+ \(sum, float32, {count} elements\)",
        r"all_reduce #\d+ \(sum, float32, {more} elements\)",
    ),
    "dtype": (r"all_reduce #\d+ \(sum, float32", r"all_reduce #\d+ \(sum, int32"),
    "reduction": (r"all_reduce #\d+ \(sum, float32", r"all_reduce #\d+ \(max, float32"),
    "operation": (r"all_reduce #\d+ \(sum, float32", r"broadcast #\d+ \(float32.*root 0"),
    "root": (r"broadcast #\d+ \(float32.*root [01]",),
}


@pytest.mark.parametrize(("case", "of"), crossed(NAMED, [(4, "AAA"), (100_000, "ABA"), (100_000, "AAA"), (4, "ABA")]))
def test_different_calls(tmp_path: Path, case: str, of: tuple[int, str]) -> None:
    count, layout = of
    with Job(tmp_path, differ, layout, (case, count)) as job:
        # The others may learn of the difference before they make their own call.
        since = job.wait_for("calling", [1])[1].at
        for rank, failure in job.failures(range(3), since, PROMPT_S).items():
            for call in NAMED[case]:
                pattern = call.replace("{count}", str(count)).replace("{more}", str(count + 8))
                assert re.search(pattern, failure.text), f"rank {rank}: {failure.text}"
            assert re.search(r"\brank 1\b", failure.text), f"rank {rank}: {failure.text}"


def swap(me: Me) -> None:
    me.join(seconds=30)
    me.check_sum()
    first, second = torch.ones(100), torch.ones(50, dtype=torch.float64)
    me.tell("calling")
    works = [
        dist.all_reduce(tensor, async_op=True) for tensor in ((second, first) if me.rank == 1 else (first, second))
    ]
    for work in works:
        work.wait()


def test_different_order(tmp_path: Path) -> None:
    with Job(tmp_path, swap, "ABA") as job:
        since = job.wait_for("calling", [1])[1].at
        for failure in job.failures(range(3), since, PROMPT_S).values():
            assert "100 elements" in failure.text
            assert "50 elements" in failure.text


def skip_one(me: Me) -> None:
    me.join()
    me.check_sum()
    me.limit(2)
    me.tell("calling")
    if me.rank == 1:
        me.listen()
    me.check_sum()


@pytest.mark.parametrize("layout", [later("AAA"), "ABA", later("AABB")])
def test_a_rank_that_never_calls(tmp_path: Path, layout: str) -> None:
    with Job(tmp_path, skip_one, layout) as job:
        since = max(event.at for event in job.wait_for("calling").values())
        callers = [rank for rank in range(job.size) if rank != 1]
        for rank, failure in job.failures(callers, since, 3.0).items():
            assert re.search(r"\brank 1\b", failure.text), f"rank {rank}: {failure.text}"
            assert re.search(r"all_reduce #1 ", failure.text), f"rank {rank}: {failure.text}"
            assert re.search(r"timed out|did not|time", failure.text), f"rank {rank}: {failure.text}"
        job.send(1, "too late")
        job.failures([1], time.monotonic(), PROMPT_S)


def wait_shortly(me: Me) -> None:
    me.join(seconds=60)
    me.check_sum()
    if me.rank == 1:
        me.listen()
    work = dist.all_reduce(torch.ones(10), async_op=True)
    me.tell("calling")
    work.wait(timedelta(seconds=0.5))


def test_the_limit_of_one_wait(tmp_path: Path) -> None:
    with Job(tmp_path, wait_shortly, "ABA") as job:
        called = job.wait_for("calling", [0, 2])
        job.errors([0, 2], max(event.at for event in called.values()), 1.5)
        job.send(1, "go on")  # the group is unharmed: when rank 1 calls, all calls complete before the ranks leave
        job.wait_for("end", [1])
        job.check_ends([0, 2], code=1)


BARRIER_S = 3


def miss_the_barrier(me: Me) -> None:
    me.join()
    me.check_sum()
    me.tell("calling")
    if me.rank in (1, 3):
        me.listen()
    else:
        atoll.monitored_barrier(timeout=timedelta(seconds=BARRIER_S), wait_all_ranks=True)


def test_monitored_barrier_names_all_who_miss(tmp_path: Path) -> None:
    with Job(tmp_path, miss_the_barrier, "AABB") as job:
        since = max(event.at for event in job.wait_for("calling").values())
        failures = job.failures([0, 2], since, BARRIER_S + PROMPT_S)
        assert "monitored_barrier" in failures[0].text
        assert re.search(r"rank 1, 3\b|ranks 1, 3\b", failures[0].text), failures[0].text
        for rank in (1, 3):
            job.send(rank, "leave")


def abort_elsewhere(me: Me, how: str) -> None:
    me.join()
    me.check_sum()
    if me.rank == 1:
        me.tell("waiting")
        me.listen()
        me.check_sum()  # raises: the group ended
        return
    waiting = threading.Event()
    texts: list[tuple[str, str, float]] = []

    def wait() -> None:
        work = dist.all_reduce(torch.ones(10), async_op=True)
        waiting.set()
        try:
            work.wait()
        except Exception as error:
            texts.append((type(error).__name__, str(error), time.monotonic()))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    me.tell("waiting")
    if me.rank == 0:
        me.listen()
        me.tell("aborting")
        if how == "all":
            dist.distributed_c10d._abort_process_group()
        else:
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    thread.join()
    assert len(texts) == 1, "the waiter got a result"
    kind, text, _ = texts[0]
    me.tell("woken", texts[0])
    raise dist.DistBackendError(f"{kind}: {text}")


# Proves C-6.
@pytest.mark.parametrize("how", ["all", "backend"])
def test_abort_from_another_thread(tmp_path: Path, how: str) -> None:
    with Job(tmp_path, abort_elsewhere, "ABA", (how,)) as job:
        job.wait_for("waiting")
        job.send(0, "abort")
        at = job.wait_for("aborting", [0])[0].at
        for rank, event in job.wait_for("woken", [0, 2]).items():
            kind, text, when = event.details
            assert when - at <= PROMPT_S, f"rank {rank} woke after {when - at:.2f} s"
            assert kind in ("DistBackendError", "DistNetworkError")
            assert "abort" in text
            assert "rank 0" in text
        job.send(1, "call now")
        assert "abort" in job.failures([0, 1, 2], time.monotonic(), PROMPT_S)[1].text


def test_abort_of_one_group_leaves_the_others(tmp_path: Path) -> None:
    with Job(tmp_path, abort_in_pair, "AB") as job:
        job.wait_for("end")
        job.check_ends()


def abort_in_pair(me: Me) -> None:
    me.join()
    group = dist.new_group()
    me.check_sum(group=group)
    me.check_sum()  # no rank is in the group's operation any more
    if me.rank == 0:
        group._get_backend(torch.device("cpu")).abort()
    with expected() as texts:
        while True:
            me.check_sum(group=group)
    assert "abort" in texts[0]
    for _ in range(10):
        me.check_sum()
    dist.destroy_process_group()


def come_late(me: Me, how: str, what: str) -> None:
    """The last rank waits for rank 0 in a group that rank 0 gave up before the two had a link."""
    me.join(seconds=60)
    group = dist.new_group()
    if me.rank == 0:
        if how == "abort":
            group._get_backend(torch.device("cpu")).abort()
        elif how == "destroy":
            dist.destroy_process_group(group)
        me.tell("gone")
        me.listen()
        return
    if me.rank == me.size - 1:
        me.listen()
        me.tell("calling")
        if what == "receive":
            dist.recv(torch.empty(1), src=0, group=group)
        me.check_sum(group=group)
    me.listen()


@pytest.mark.parametrize(
    ("transport", "of"),
    crossed(["shm", "tcp"], itertools.product(["abort", "destroy"], ["all_reduce", "receive"])),
)
def test_a_group_that_another_rank_has_given_up(tmp_path: Path, transport: str, of: tuple[str, str]) -> None:
    how, what = of
    with Job(tmp_path, come_late, "AB", (how, what), {"ATOLL_TRANSPORT": transport}) as job:
        job.wait_for("gone", [0])
        job.send(1, "call now")
        since = job.wait_for("calling", [1])[1].at
        text = job.failures([1], since, PROMPT_S)[1].text
        assert "rank 0" in text
        assert ("abort" if how == "abort" else "left") in text
        job.send(0, "leave")
        job.wait_for("end", [0])
        job.check_ends([0])


def differ_at_once(me: Me) -> None:
    me.join(seconds=60)
    me.tell("calling")
    me.check_sum(4 if me.rank else 5)


@pytest.mark.parametrize("layout", [later("AAA"), "ABA", "AABB"])
def test_different_first_calls(tmp_path: Path, layout: str) -> None:
    """The first ranks notice the difference while some links are still being opened."""
    with Job(tmp_path, differ_at_once, layout) as job:
        since = job.wait_for("calling", [0])[0].at
        failures = job.failures(range(job.size), since, PROMPT_S)
        for rank, failure in failures.items():
            # A rank that connects while another leaves for this reason, or later, learns only that it left.
            named = "4 elements" in failure.text and "5 elements" in failure.text
            gone = "closed" in failure.text or "it has ended" in failure.text
            assert named or gone, f"rank {rank}: {failure.text}"
        assert any("5 elements" in failure.text for failure in failures.values())


def exchange_unlike(me: Me, wrong: str) -> None:
    me.join(seconds=10)
    me.check_sum()
    me.tell("calling")
    me.listen()  # a rank that has its sum may fail before another one has
    if me.rank == 0:
        dist.send(torch.ones(10), dst=1)
    elif me.rank == 1:
        dist.recv(torch.empty(11) if wrong == "size" else torch.empty(10, dtype=torch.int32), src=0)
    dist.barrier()


@pytest.mark.parametrize("wrong", ["size", "dtype"])
def test_messages_that_do_not_fit(tmp_path: Path, wrong: str) -> None:
    with Job(tmp_path, exchange_unlike, "ABA", (wrong,)) as job:
        since = max(event.at for event in job.wait_for("calling").values())
        for rank in range(3):
            job.send(rank, "exchange")
        for failure in job.failures(range(3), since, PROMPT_S).values():
            assert "rank 1" in failure.text
            assert "rank 0" in failure.text
