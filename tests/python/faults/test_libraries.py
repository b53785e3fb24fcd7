# SPDX-License-Identifier: Apache-2.0
"""Islands with a library inside: a death, a missing rank or a contradiction raises on every rank, in time and with
the right name."""

import itertools
import os
import re
import resource
import signal
import time
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import atoll
from fault_jobs import Job, Me, reduce_forever
from support import crossed, later

DEATH_S = 2.0
HEARTBEAT_S = 2.0
SILENCE_S = HEARTBEAT_S + 1.0
JOIN_S, LATE_S = 3.0, 4.0
GLOO = {"ATOLL_INNER": "cpu:gloo"}
SIM = {"ATOLL_DEVICE": "sim"}
LIBRARIES = {"gloo": GLOO, "simccl": SIM}


# Proves D-7.
@pytest.mark.parametrize(
    ("victim", "of", "library"), crossed([1, 2], [("AAB", 1), ("AABB", 300_007), ("AAA", 300_007)], LIBRARIES)
)
def test_killed_inside_an_island(tmp_path: Path, victim: int, of: tuple[str, int], library: str) -> None:
    layout, count = of
    with Job(tmp_path, reduce_forever, layout, (count,), LIBRARIES[library]) as job:
        job.wait_for("running")
        at = job.signal(victim)
        survivors = [rank for rank in range(job.size) if rank != victim]
        texts = [failure.text for failure in job.failures(survivors, at, DEATH_S).values()]
        if layout != "AAA":  # there the library's own error may come first
            assert all(re.search(rf"\brank {victim}\b", text) for text in texts), texts


def call_forever(me: Me, count: int) -> None:
    """Calls operations until one fails; some of Gloo's end by themselves, others have to be waited for."""
    me.join()
    whole = torch.ones(count * me.size, device=atoll.device())
    part = torch.ones(count, device=atoll.device())
    for turn in itertools.count():
        dist.all_reduce(part)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_gather_into_tensor(whole, part)
        dist.broadcast(whole.fill_(1), 0)
        if turn == 3:
            me.tell("running")


# Proves D-7.
@pytest.mark.parametrize(("layout", "library"), crossed(["AAB", "AAA"], LIBRARIES))
def test_stopped_inside_an_island(tmp_path: Path, layout: str, library: str) -> None:
    """The island's library does not notice, and cannot end operations that wait for that rank."""
    environment = {"ATOLL_HEARTBEAT": str(HEARTBEAT_S), **LIBRARIES[library]}
    with Job(tmp_path, call_forever, layout, (30_011,), environment) as job:
        job.wait_for("running")
        at = job.signal(1, signal.SIGSTOP)
        for failure in job.failures([0, 2], at, SILENCE_S).values():
            assert re.search(r"\brank 1\b", failure.text), failure.text
        resumed = job.signal(1, signal.SIGCONT)
        job.failures([1], resumed, DEATH_S)


def leave_while_the_library_works(me: Me) -> None:
    """Rank 1 ends after it has done its part of everything, except what its library is still doing."""
    me.join()
    value = torch.full((1000,), float(me.rank), device=atoll.device())
    work = dist.broadcast(value, 2, async_op=True)
    me.tell("leaving")
    if me.rank == 1:
        dist.destroy_process_group()
        me.tell("left")
    work.wait()
    value.cpu()
    me.listen()


def test_killed_while_its_library_ends(tmp_path: Path) -> None:
    """What the library has not done is aborted at once: each communicator's abort waits for the other's operations."""
    own = {1: {"ATOLL_SIM_DELAY": "60"}}
    with Job(tmp_path, leave_while_the_library_works, "AAB", (), SIM, own) as job:
        job.wait_for("leaving")
        assert not wait([job.connections[1]], 1), job.connections[1].recv()
        at = job.signal(1)
        for failure in job.failures([0], at, DEATH_S).values():
            assert re.search(r"\brank 1\b", failure.text), failure.text


FEW = 20  # descriptors: enough for links, but not for a library


def join_with_few_descriptors(me: Me) -> None:
    import atoll.sim  # noqa: F401

    if me.rank == 1:
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + FEW, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    me.tell("joining")
    me.join(JOIN_S)


@pytest.mark.parametrize("environment", [GLOO, SIM], ids=["gloo", "simccl"])
def test_too_few_descriptors_for_the_library(tmp_path: Path, environment: dict[str, str]) -> None:
    with Job(tmp_path, join_with_few_descriptors, "AAB", (), environment) as job:
        since = max(event.at for event in job.wait_for("joining").values())
        failures = job.failures([0, 1], since, DEATH_S)
        assert re.search(r"\d+ of \d+ file descriptors are left, .*ulimit -n", failures[1].text), failures[1].text


def reduce_without_one(me: Me, absent: int) -> None:
    me.join(seconds=3)
    me.check_sum(100_000)
    me.tell("running")
    if me.rank == absent:
        me.listen()
    begin = time.monotonic()
    try:
        me.check_sum(100_000)
    finally:
        me.tell("waited", time.monotonic() - begin)


@pytest.mark.parametrize("environment", [GLOO, later(SIM)], ids=["gloo", "simccl"])
def test_a_rank_that_never_calls(tmp_path: Path, environment: dict[str, str]) -> None:
    with Job(tmp_path, reduce_without_one, "AAB", (1,), environment) as job:
        job.wait_for("running")
        waited = job.wait_for("waited", [0, 2])
        assert all(event.details < 8 for event in waited.values()), waited


JOIN_S, LATE_S = 2.0, 4.0


def join_but_for_the_library(me: Me, absent: int) -> None:
    from atoll import communicators

    if me.rank == absent:
        communicators.connect = lambda request: me.listen()
    me.tell("joining")
    me.join(JOIN_S)


@pytest.mark.parametrize("environment", [later(GLOO), SIM], ids=["gloo", "simccl"])
def test_a_rank_that_does_not_join_the_library(tmp_path: Path, environment: dict[str, str]) -> None:
    with Job(tmp_path, join_but_for_the_library, "BAA", (2,), environment) as job:
        since = max(event.at for event in job.wait_for("joining").values())
        text = job.failures([1], since, JOIN_S + LATE_S)[1].text
        assert 'communicator of island "A" (ranks 1, 2, which it counts from 0): ' in text
        assert "At:" not in text


def give_up_before_the_library(me: Me, victim: int) -> None:
    from atoll import communicators

    def refuse(request: object) -> None:
        me.tell("refusing")
        raise RuntimeError("no driver here")

    if me.rank == victim:
        communicators.connect = refuse
    me.join()


@pytest.mark.parametrize("environment", [GLOO, later(SIM)], ids=["gloo", "simccl"])
def test_a_rank_that_gives_up_before_its_library(tmp_path: Path, environment: dict[str, str]) -> None:
    with Job(tmp_path, give_up_before_the_library, "BAAA", (2,), environment) as job:
        since = job.wait_for("refusing", [2])[2].at
        for failure in job.failures([1, 2, 3], since, DEATH_S).values():
            assert re.search("rank 2 could not join the .* communicator .*no driver here", failure.text), failure.text


def run_ahead(me: Me) -> None:
    """Rank 1 calls ahead: rank 0 makes the same calls only once it has the result of an earlier one."""
    me.join(20)
    device = atoll.device()
    ones, part, whole = (torch.ones(count, device=device) for count in (1000, 1000, 3000))
    if me.rank == 0:
        me.listen()
    for _ in range(2):
        works = [dist.all_gather_into_tensor(whole, ones, async_op=True)]
        if me.rank != 1:
            works[0].wait()
            assert whole.cpu().eq(1).all()
        me.tell("calling")
        works.append(dist.reduce_scatter_tensor(part, whole.clone(), async_op=True))
        for work in works:
            work.wait()
        assert part.cpu().eq(3).all()
        ones, whole = ones.clone(), whole.clone()
    dist.destroy_process_group()


def run_far_ahead(me: Me) -> None:
    """Rank 1 makes more calls than its staging queue has room for; the others call only once they have each result."""
    me.join(20)
    device = atoll.device()
    ones, part, whole = (torch.ones(count, device=device) for count in (1000, 1000, 3000))
    if me.rank == 0:
        me.listen()
    works = []
    for number in range(30):
        if number % 3 == 2:
            works.append(dist.reduce_scatter_tensor(part, whole, async_op=True))
        else:
            works.append(dist.all_reduce(ones.clone(), async_op=True))
        if me.rank != 1:
            works[-1].wait()
    for work in works:
        work.wait()
    assert part.cpu().eq(3).all()
    dist.destroy_process_group()


@pytest.mark.parametrize("environment", [later(GLOO), SIM], ids=["gloo", "simccl"])
def test_a_rank_that_is_far_ahead_of_its_island(tmp_path: Path, environment: dict[str, str]) -> None:
    with Job(tmp_path, run_far_ahead, "AAB", (), {**environment, "ATOLL_STAGING": "1"}) as job:
        job.send(0, "go on")
        job.wait_for("end")
        job.check_ends()


@pytest.mark.parametrize("environment", [GLOO, SIM], ids=["gloo", "simccl"])
def test_a_rank_that_is_ahead_of_its_island(tmp_path: Path, environment: dict[str, str]) -> None:
    with Job(tmp_path, run_ahead, "AAB", (), environment) as job:
        job.wait_for("calling", [1])
        assert not wait([job.connections[1]], 0.2)
        job.send(0, "go on")
        job.wait_for("end")
        job.check_ends()


def join_only(me: Me) -> None:
    me.join(seconds=20)
    me.tell("joined")


def refusals(job: Job) -> list[str]:
    return [event.details[1] for event in job.wait_for("error").values()]


def test_an_island_of_unlike_devices(tmp_path: Path) -> None:
    with Job(tmp_path, join_only, "AAB", own={1: SIM}) as job:
        for text in refusals(job):
            assert 'rank 0 (on cpu) and rank 1 (on sim) are both in island "A"' in text
            assert "ATOLL_DEVICE=cpu where a rank is to compute on the CPU" in text


def test_an_island_of_unlike_libraries(tmp_path: Path) -> None:
    with Job(tmp_path, join_only, "AAB", own={0: GLOO}) as job:
        for text in refusals(job):
            assert 'rank 0 (library gloo) and rank 1 (no library) are both in island "A"' in text
            assert "same ATOLL_INNER" in text


def test_a_device_missing_on_one_rank(tmp_path: Path) -> None:
    with Job(tmp_path, join_only, "ABC", own={2: {"ATOLL_DEVICE": "cuda:0"}}) as job:
        for text in refusals(job):
            assert "rank 2 cannot take part: ATOLL_DEVICE=cuda:0: this process finds no device of type cuda" in text
            assert "or with ATOLL_DEVICE=cpu" in text


def test_a_module_missing_on_one_rank(tmp_path: Path) -> None:
    with Job(tmp_path, join_only, "ABC", own={1: {"ATOLL_DEVICE": "npu"}}) as job:
        for text in refusals(job):
            assert "rank 1 cannot take part: npu needs the module torch_npu for hccl" in text
            assert "install it, or let this rank compute on the CPU with ATOLL_DEVICE=cpu" in text


def make_and_break(me: Me, times: int) -> None:
    """Creates and destroys groups; the first few fill the caches."""
    me.join()
    before: tuple[int, int, int] | None = None
    for turn in range(times + 10):
        group = dist.new_group(timeout=None)
        me.check_sum(1000, group)
        dist.destroy_process_group(group)
        if turn == 9:
            before = resources()
    after = resources()
    assert before is not None
    descriptors, threads, kilobytes = (late - early for late, early in zip(after, before, strict=True))
    assert descriptors <= 2, f"{descriptors} more descriptors after {times} groups"
    assert threads <= 2, f"{threads} more threads after {times} groups"
    assert kilobytes <= 8192 + 8 * times, f"{kilobytes} kB more memory after {times} groups"


def resources() -> tuple[int, int, int]:
    """Returns the descriptors, threads and resident kilobytes of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return descriptors, int(status["Threads"]), int(status["VmRSS"].split()[0])


@pytest.mark.parametrize("environment", [later(GLOO), SIM], ids=["gloo", "simccl"])
@pytest.mark.parametrize("times", [30, pytest.param(1000, marks=[pytest.mark.verify, pytest.mark.timeout(900)])])
def test_groups_leave_nothing_behind(tmp_path: Path, environment: dict[str, str], times: int) -> None:
    with Job(tmp_path, make_and_break, "AAB", (times,), environment) as job:
        job.wait_for("end", seconds=60 if times < 100 else 800)
        job.check_ends()
