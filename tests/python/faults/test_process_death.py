# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, stops or leaves causes an exception on every other rank, in time, and all processes end."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fault_jobs import Job, Me, expected, process_ends, reduce_forever
from support import crossed, later

DEATH_S = 2.0


LONG = 1 << 20
JOBS = [("AAA", "shm", 1), ("AAA", "tcp", 1), ("ABA", "shm", LONG), ("ABA", "tcp", LONG), ("AABB", "auto", 30_011)]


# Proves C-5.
@pytest.mark.parametrize(("victim", "of"), crossed([0, 1], JOBS))
def test_killed_during_all_reduce(tmp_path: Path, victim: int, of: tuple[str, str, int]) -> None:
    layout, transport, count = of
    with Job(tmp_path, reduce_forever, layout, (count,), {"ATOLL_TRANSPORT": transport}) as job:
        job.wait_for("running")
        at = job.signal(victim)
        survivors = [rank for rank in range(job.size) if rank != victim]
        for rank, failure in job.failures(survivors, at, DEATH_S).items():
            assert re.search(rf"\brank {victim}\b", failure.text), failure.text
            assert re.search(r"all_reduce #\d+ .*on rank \d", failure.text), f"rank {rank}: {failure.text}"


def test_two_killed_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, reduce_forever, "AABB", (1000,)) as job:
        job.wait_for("running")
        at = job.signal(1)
        job.signal(3)
        job.failures([0, 2], at, DEATH_S)


def wait_for_messages(me: Me) -> None:
    me.join()
    me.check_sum()
    if me.rank == 1:
        me.tell("running")
        me.listen()
    tensor = torch.zeros(10)
    if me.rank == 0:
        work = dist.irecv(tensor, src=1)
        me.tell("running")
        work.wait()
    else:
        me.tell("running")
        dist.barrier()


# Proves C-5.
def test_killed_while_others_wait_for_messages(tmp_path: Path) -> None:
    with Job(tmp_path, wait_for_messages) as job:
        job.wait_for("running")
        at = job.signal(1)
        for failure in job.failures([0, 2], at, DEATH_S).values():
            assert "rank 1" in failure.text


def hold_pending_work(me: Me) -> None:
    me.join()
    me.check_sum()
    if me.rank == 1:
        me.tell("running")
        me.listen()
    tensors = [torch.ones(1000 + index) for index in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    completed: list[int] = []
    for index, work in enumerate(works):
        work.get_future().add_done_callback(lambda future, index=index: completed.append(index))
    me.tell("running")
    for work in works:
        with expected() as texts:
            work.wait()
        assert "rank 1" in texts[0]
        assert work.is_completed()
        assert not work.is_success()
    assert sorted(completed) == list(range(8))
    with expected() as texts:
        me.check_sum()
    assert "rank 1" in texts[0]
    raise dist.DistBackendError("as it should be")


# Proves C-9.
@pytest.mark.parametrize("layout", ["AAA", "ABA"])
def test_every_pending_work_and_future_completes_once(tmp_path: Path, layout: str) -> None:
    with Job(tmp_path, hold_pending_work, layout) as job:
        job.wait_for("running")
        at = job.signal(1)
        for failure in job.failures([0, 2], at, DEATH_S).values():
            assert failure.text == "as it should be"


# Proves T-6.
@pytest.mark.parametrize("transport", ["shm", later("tcp")])
def test_stopped(tmp_path: Path, transport: str) -> None:
    environment = {"ATOLL_HEARTBEAT": "2", "ATOLL_TRANSPORT": transport}
    with Job(tmp_path, reduce_forever, "ABA", (1000,), environment) as job:
        job.wait_for("running")
        at = job.signal(1, signal.SIGSTOP)
        for failure in job.failures([0, 2], at, 3.0).values():
            assert "rank 1" in failure.text
        # Once it continues, the stopped rank learns that the others gave it up.
        resumed = job.signal(1, signal.SIGCONT)
        job.failures([1], resumed, DEATH_S)


def reduce_when_told(me: Me) -> None:
    me.join()
    me.tell("joined")
    me.listen()
    me.check_sum()


@pytest.mark.parametrize("transport", [later("shm"), "tcp"])
def test_stopped_before_any_link_is_up(tmp_path: Path, transport: str) -> None:
    environment = {"ATOLL_HEARTBEAT": "2", "ATOLL_TRANSPORT": transport}
    with Job(tmp_path, reduce_when_told, "ABA", (), environment) as job:
        job.wait_for("joined")
        at = job.signal(1, signal.SIGSTOP)
        for rank in range(3):
            job.send(rank, "go on")
        for failure in job.failures([0, 2], at, 3.0).values():
            assert "rank 1" in failure.text
        resumed = job.signal(1, signal.SIGCONT)
        job.failures([1], resumed, DEATH_S)


def host_the_store(me: Me, count: int) -> None:
    if me.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        me.tell("store", store.port)
    me.join(port=me.listen())
    me.check_sum(count)
    me.tell("running")
    while True:
        me.check_sum(count)


def test_host_of_the_store_killed(tmp_path: Path) -> None:
    with Job(tmp_path, host_the_store, "ABA", (1000,)) as job:
        port = job.wait_for("store", [0])[0].details
        for rank in range(3):
            job.send(rank, port)
        job.wait_for("running")
        at = job.signal(0)
        for failure in job.failures([1, 2], at, DEATH_S).values():
            assert "rank 0" in failure.text


def raise_on_one(me: Me, before: int) -> None:
    me.join()
    for _ in range(before):
        me.check_sum()
    if me.rank == 1:
        me.tell("leaving")
        raise RuntimeError("this rank has a bug")
    me.check_sum()


@pytest.mark.parametrize(("before", "layout"), crossed([0, 3], ["AAA", "ABA"]))  # before any link is open, and after
def test_one_rank_raises_and_exits(tmp_path: Path, layout: str, before: int) -> None:
    with Job(tmp_path, raise_on_one, layout, (before,)) as job:
        at = job.wait_for("leaving", [1])[1].at
        for failure in job.failures([0, 2], at, DEATH_S).values():
            # A rank without a link may first meet one that has already left because of the same error.
            assert re.search(r"rank 1\b" if before else r"rank [012]\b.*(rank 1\b|closed)", failure.text), failure.text
        job.check_ends([1], code=1)


def keep_to_a_subgroup(me: Me) -> None:
    me.join()
    pair = dist.new_group([0, 1])
    me.check_sum()
    me.tell("running")
    if me.rank == 2:
        me.listen()
    me.listen()
    for turn in range(20):
        me.check_sum(1 + 997 * turn, pair)
    with expected() as texts:
        me.check_sum()
    assert "rank 2" in texts[0]
    for turn in range(20):
        me.check_sum(1 + 997 * turn, pair)
    later = dist.new_group([0, 1], use_local_synchronization=True)
    me.check_sum(1000, later)
    dist.destroy_process_group(later)
    dist.destroy_process_group(pair)


def test_group_without_the_dead_rank_goes_on(tmp_path: Path) -> None:
    with Job(tmp_path, keep_to_a_subgroup, "ABA") as job:
        job.wait_for("running")
        job.signal(2)
        assert process_ends(job.pid(2), 5)
        for rank in (0, 1):
            job.send(rank, "go on")
        job.wait_for("end", [0, 1])
        job.check_ends([0, 1])


def fork_and_wait(me: Me) -> None:
    me.join()
    me.check_sum()
    if me.rank == 1:
        child = os.fork()
        if child == 0:
            os.read(os.pipe()[0], 1)  # forever: the process holds the writing end itself
        me.tell("child", child)
    me.tell("running")
    while True:
        me.check_sum()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_killed_while_its_forked_child_lives(tmp_path: Path, transport: str) -> None:
    with Job(tmp_path, fork_and_wait, "AAA", (), {"ATOLL_TRANSPORT": transport}) as job:
        child = job.wait_for("child", [1])[1].details
        try:
            job.wait_for("running")
            at = job.signal(1)
            for failure in job.failures([0, 2], at, DEATH_S).values():
                assert "rank 1" in failure.text
        finally:
            os.kill(child, signal.SIGKILL)
