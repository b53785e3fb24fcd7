# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait log which rank is missing while it sleeps in Python, and when it arrives."""

import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fault_jobs import Job, Me

SLOW_S = "0.6"
WAIT_S = 30


def logged(folder: Path, rank: int, pattern: str) -> bool:
    """Returns whether the rank's log gets a line like this within a time that is enough for a busy machine."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if re.search(pattern, (folder / f"rank{rank}.log").read_text()):
            return True
        time.sleep(0.05)  # a file cannot be waited for
    return False


def be_late(me: Me, late: int) -> None:
    me.join()
    me.check_sum()
    me.tell("ready")
    if me.rank == late:
        me.listen()
    me.check_sum()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("layout", "devices", "late", "others"),
    [("AAA", "cpu", 1, [0, 2]), ("ABAB", "cpu", 3, [0, 1, 2]), ("AABB", "sim", 1, [0, 2])],  # rank 3 waits for rank 2
)
def test_a_late_rank_is_named_and_its_arrival_too(
    tmp_path: Path, layout: str, devices: str, late: int, others: list[int]
) -> None:
    """Every rank that crosses the bridge names it; with a library inside the islands only their leads do."""
    environment = {"ATOLL_SLOW_AFTER": SLOW_S, "ATOLL_DEVICE": devices}
    with Job(tmp_path, be_late, layout, (late,), environment) as job:
        job.wait_for("ready")
        for rank in others:
            assert logged(tmp_path, rank, rf"on rank {rank}: .*rank {late} has not entered \w+ #1 "), job.report()
        job.send(late, "go on")
        job.check_ends()
    for rank in others:
        text = (tmp_path / f"rank{rank}.log").read_text()
        assert re.search(rf"rank {late} entered \w+ #1 .* after \d", text), text
        assert "have been waiting since" in text
    # Lines about the first call do not count, because another rank may have been late there by itself.
    assert not re.search(r"not entered \w+ #1 ", (tmp_path / f"rank{late}.log").read_text())


def be_late_in_a_part(me: Me) -> None:
    me.join()
    part = dist.new_group([1, 3])
    me.tell("ready")
    if me.rank == 3:
        me.listen()
    if me.rank in (1, 3):
        dist.all_reduce(torch.ones(3), group=part)
    dist.destroy_process_group()


def test_in_a_part_of_the_job_ranks_have_both_numbers(tmp_path: Path) -> None:
    with Job(tmp_path, be_late_in_a_part, "ABAB", environment={"ATOLL_SLOW_AFTER": SLOW_S}) as job:
        job.wait_for("ready")
        assert logged(tmp_path, 1, r"rank 1 \(rank 3 of the job\) has not entered \w+ #0"), job.report()
        job.send(3, "go on")
        job.check_ends()


def test_nothing_is_said_where_it_is_off(tmp_path: Path) -> None:
    environment = {0: {"ATOLL_SLOW_AFTER": "0"}, 2: {"ATOLL_SLOW_AFTER": SLOW_S}}
    with Job(tmp_path, be_late, "AAA", (1,), own=environment) as job:
        job.wait_for("ready")
        assert logged(tmp_path, 2, "rank 1 has not entered"), job.report()
        job.send(1, "go on")
        job.check_ends()
    assert "not entered" not in (tmp_path / "rank0.log").read_text()
