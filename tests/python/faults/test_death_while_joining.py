# SPDX-License-Identifier: Apache-2.0
"""A rank dies while a group is made. If the others know it, they raise in time; if it never came, they can only
raise at the timeout."""

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fault_jobs import START_S, Job, Me

DEATH_S = 2.0
TIMEOUT_S = 6.0


class Passing(dist.Store):
    """Forwards to another store, and calls hooks before or after an entry is set."""

    def __init__(self, store: dist.Store, me: Me, is_heard: bool) -> None:
        super().__init__()
        self.store, self.me, self.is_heard = store, me, is_heard

    def set(self, key: str, value: bytes) -> None:
        is_entry = "up/" in key
        if is_entry and not self.is_heard:
            self.end()
        self.store.set(key, value)
        if is_entry:
            self.end()

    def end(self) -> None:
        self.me.tell("gone")
        os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str) -> bytes:
        value: bytes = self.store.get(key)
        return value

    def add(self, key: str, value: int) -> int:
        return self.store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.store.wait(keys, *([] if timeout is None else [timeout]))

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        value: bytes = self.store.compare_set(key, expected, desired)
        return value


def join_or_die(me: Me, victim: int, is_heard: bool) -> None:
    limit = timedelta(seconds=TIMEOUT_S)
    me.tell("joining")
    store: dist.Store = dist.TCPStore("127.0.0.1", me.port, is_master=False, timeout=timedelta(seconds=START_S))
    if me.rank == victim:
        store = Passing(store, me, is_heard)
        me.listen()
    dist.init_process_group("atoll", store=store, rank=me.rank, world_size=me.size, timeout=limit)
    dist.all_reduce(torch.ones(10))


@pytest.mark.parametrize(("layout", "victim"), [("AAA", 1), ("ABA", 2), ("AABB", 1)])
def test_a_rank_that_is_known(tmp_path: Path, layout: str, victim: int) -> None:
    with Job(tmp_path, join_or_die, layout, (victim, True)) as job:
        job.wait_for("joining")
        job.send(victim, "go on")
        at = job.wait_for("gone", [victim])[victim].at
        others = [rank for rank in range(job.size) if rank != victim]
        told: set[int] = set()
        for rank, failure in sorted(job.failures(others, at, DEATH_S).items(), key=lambda item: item[1].at):
            # A rank that comes after another survivor has ended has no peer left to learn from.
            assert f"rank {victim}" in failure.text or any(f"rank {other} " in failure.text for other in told)
            told.add(rank)
        assert told == set(others)


def test_a_rank_that_never_came(tmp_path: Path) -> None:
    with Job(tmp_path, join_or_die, "AAA", (1, False)) as job:
        job.wait_for("joining")
        job.send(1, "go on")
        at = job.wait_for("gone", [1])[1].at
        for failure in job.failures([0, 2], at, TIMEOUT_S + DEATH_S).values():
            assert "rank 1 did not join the group of 3 ranks in time" in failure.text
