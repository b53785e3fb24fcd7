# SPDX-License-Identifier: Apache-2.0
"""Islands with a library inside: a death, a missing rank or a contradiction is an exception on every rank, in time and
by name."""

import re
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from fault_jobs import Job, Me, reduce_forever

DEATH_S = 2.0
GLOO = {"ATOLL_INNER": "cpu:gloo"}
SIM = {"ATOLL_DEVICE": "sim"}


@pytest.mark.parametrize("environment", [GLOO, SIM], ids=["gloo", "simccl"])
@pytest.mark.parametrize(("layout", "count"), [("AAB", 1), ("AABB", 300_007), ("AAA", 300_007)])
@pytest.mark.parametrize("victim", [1, 2])
def test_killed_inside_an_island(
    tmp_path: Path, environment: dict[str, str], layout: str, count: int, victim: int
) -> None:
    with Job(tmp_path, reduce_forever, layout, (count,), environment) as job:
        job.wait_for("running")
        at = job.signal(victim)
        survivors = [rank for rank in range(job.size) if rank != victim]
        texts = [failure.text for failure in job.failures(survivors, at, DEATH_S).values()]
        if layout != "AAA":  # there, the library's own words may come first
            assert all(re.search(rf"\brank {victim}\b", text) for text in texts), texts


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


@pytest.mark.parametrize("environment", [GLOO, SIM], ids=["gloo", "simccl"])
def test_a_rank_that_never_calls(tmp_path: Path, environment: dict[str, str]) -> None:
    with Job(tmp_path, reduce_without_one, "AAB", (1,), environment) as job:
        job.wait_for("running")
        waited = job.wait_for("waited", [0, 2])
        assert all(event.details < 8 for event in waited.values()), waited


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
    """Groups come and go; a first few fill the caches."""
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
    """Descriptors, threads and resident kilobytes of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return descriptors, int(status["Threads"]), int(status["VmRSS"].split()[0])


@pytest.mark.parametrize("environment", [GLOO, SIM], ids=["gloo", "simccl"])
@pytest.mark.parametrize("times", [30, pytest.param(1000, marks=[pytest.mark.verify, pytest.mark.timeout(900)])])
def test_groups_leave_nothing_behind(tmp_path: Path, environment: dict[str, str], times: int) -> None:
    with Job(tmp_path, make_and_break, "AAB", (times,), environment) as job:
        job.wait_for("end", seconds=60 if times < 100 else 800)
        job.check_ends()
