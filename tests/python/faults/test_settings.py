# SPDX-License-Identifier: Apache-2.0
"""Wrong settings and missing resources are clear errors in time, on every rank."""

import contextlib
import os
import re
import resource
import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from fault_jobs import Job, Me
from support import crossed, later

JOIN_S = 3.0
LATE_S = 4.0
NOBODYS = "100::1"  # in the prefix that routers discard (RFC 6666)


def join_and_sum(me: Me, seconds: float = JOIN_S) -> None:
    me.tell("joining")
    me.join(seconds)
    me.tell("joined")
    me.check_sum()
    dist.destroy_process_group()


MISSING_S = 2.0


def meet_and_join(me: Me) -> None:
    """Joins at the same time as the others, so that a short wait for a rank that never comes is long enough for all."""
    me.tell("ready")
    me.listen()
    join_and_sum(me, MISSING_S)


def write_key(path: Path, key: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key)


def let_join(job: Job) -> float:
    """Lets all ranks join; returns when the last one started to."""
    ranks = job.wait_for("ready")
    for rank in ranks:
        job.send(rank, "go on")
    return max(event.at for event in job.wait_for("joining").values())


WRONG = [
    ("ATOLL_PORTS", "many", "29600-29700"),
    ("ATOLL_PORTS", "0", "29600-29700"),
    ("ATOLL_PORTS", "300-200", "29600-29700"),
    ("ATOLL_PORTS", "1-99999", "29600-29700"),
    ("ATOLL_TRANSPORT", "pigeons", "auto, shm, tcp or ucx"),
    ("ATOLL_HEARTBEAT", "soon", "seconds"),
    ("ATOLL_HEARTBEAT", "-1", "seconds"),
    ("ATOLL_HEARTBEAT", "nan", "seconds"),
    ("ATOLL_KEY_FILE", "/nowhere/key", "only its owner may read"),
    ("ATOLL_TLS", "yes", "1, or nothing"),
    ("ATOLL_REDUCE", "tree", "flat"),
    ("ATOLL_UPLINK", "fast", "positive number"),
    ("ATOLL_UPLINK", "-3", "positive number"),
    ("ATOLL_ISLAND", "two words", "letters"),
    ("ATOLL_ISLAND", "x" * 1000, "letters"),
    ("ATOLL_IFACE", "nosuch0", "lo"),
    ("ATOLL_RAILS", "0", "a number from 1 to 8"),
    ("ATOLL_RAILS", "lo,", "interfaces or addresses"),
    ("ATOLL_RAILS", "nosuch0", "this machine has"),
    ("ATOLL_ADDRESS", "no.such.host.invalid", "does not resolve"),
    ("ATOLL_SIMD", "mmx", "plain, avx2 or avx512"),
    ("ATOLL_CHECK", "perhaps", "1"),
    ("ATOLL_LOG_LEVEL", "loud", "debug, info, warning, error or off"),
    ("ATOLL_DUMP_DIR", "/nowhere/dumps", "folder"),
    ("ATOLL_CHECK_DATA", "yes", "1, or nothing"),
    ("ATOLL_CHECK_VALUES", "nan", "warn, raise, or nothing"),
    ("ATOLL_SLOW_AFTER", "soon", "seconds from 0.2 to 86400"),
    ("ATOLL_SLOW_AFTER", "-1", "seconds from 0.2 to 86400"),
    ("ATOLL_TRACE_DIR", "/nowhere/traces", "folder"),
    ("ATOLL_TRACE_EVENTS", "1", "256 to 1048576"),
    ("TORCHELASTIC_RESTART_COUNT", "twice", "whole number"),
]


@pytest.mark.parametrize(
    ("variable", "value", "way_out"), WRONG, ids=[f"{name}={text[:12]}" for name, text, _ in WRONG]
)
def test_wrong_value(tmp_path: Path, variable: str, value: str, way_out: str) -> None:
    with Job(tmp_path, join_and_sum, "A", environment={variable: value}) as job:
        (event,) = job.wait_for("error").values()
        kind, text = event.details
        assert kind in ("ValueError", "DistBackendError"), f"{kind}: {text}"
        assert variable in text
        assert value in text
        assert way_out in text
        job.check_ends(code=1)


@pytest.mark.parametrize("wrong", [0, later(1), later(2)])
def test_wrong_value_on_one_rank(tmp_path: Path, wrong: int) -> None:
    """The others cannot know the reason in advance, but they learn in time which rank is missing, or why."""
    with Job(tmp_path, meet_and_join, "AAA", own={wrong: {"ATOLL_HEARTBEAT": "soon"}}) as job:
        since = let_join(job)
        failures = job.failures([rank for rank in range(3) if rank != wrong], since, MISSING_S + LATE_S)
        for failure in failures.values():
            assert f"rank {wrong}" in failure.text
        (event,) = job.wait_for("error", [wrong]).values()
        assert event.at - since <= LATE_S
        assert "ATOLL_HEARTBEAT" in event.details[1]


@pytest.mark.parametrize("missing", [0, later(1), later(2), later(3)])
def test_missing_rank(tmp_path: Path, missing: int) -> None:
    present = [rank for rank in range(4) if rank != missing]
    with Job(tmp_path, meet_and_join, "AABB", start=present) as job:
        since = let_join(job)
        for rank, failure in job.failures(present, since, MISSING_S + LATE_S).items():
            assert re.search(rf"\branks? {missing}\b", failure.text), f"rank {rank}: {failure.text}"


@pytest.mark.parametrize("variable", ["ATOLL_REDUCE", "ATOLL_KEY_FILE", "ATOLL_CHECK_DATA", "ATOLL_CHECK_VALUES"])
def test_settings_that_must_be_equal(tmp_path: Path, variable: str) -> None:
    key = tmp_path / "key"
    write_key(key, b"k" * 32)
    values = {"ATOLL_REDUCE": "flat", "ATOLL_CHECK_DATA": "1", "ATOLL_CHECK_VALUES": "warn"}
    value = values.get(variable, str(key))
    with Job(tmp_path, join_and_sum, "AAA", own={1: {variable: value}}) as job:
        since = max(event.at for event in job.wait_for("joining").values())
        failures = job.failures(range(3), since, JOIN_S + LATE_S)
        assert variable in failures[1].text
        for failure in failures.values():
            assert "rank 1" in failure.text


@pytest.mark.parametrize(("wrong", "transport"), crossed([0, 1], ["shm", "tcp"]))
def test_wrong_key(tmp_path: Path, transport: str, wrong: int) -> None:
    right, other = tmp_path / "right", tmp_path / "other"
    write_key(right, b"r" * 32)
    write_key(other, b"o" * 32)
    environment = {"ATOLL_KEY_FILE": str(right), "ATOLL_TRANSPORT": transport}
    own = {wrong: {"ATOLL_KEY_FILE": str(other)}}
    with Job(tmp_path, join_and_sum, "AAA", (20.0,), environment, own) as job:
        since = max(event.at for event in job.wait_for("joined").values())
        failures = job.failures(range(3), since, LATE_S)
        assert any("key" in failure.text for failure in failures.values()), failures
        for rank, failure in failures.items():
            assert re.search(r"\brank \d\b", failure.text), f"rank {rank}: {failure.text}"


def test_common_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    write_key(key, b"k" * 32)
    with Job(tmp_path, join_and_sum, "ABA", (20.0,), {"ATOLL_KEY_FILE": str(key)}) as job:
        job.wait_for("end")
        job.check_ends()


@contextlib.contextmanager
def taken_ports(count: int):  # type: ignore[no-untyped-def]
    """Opens listeners on `count` consecutive ports."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server(("", port)))
            except (OSError, OverflowError):
                continue
            yield first, first + count - 1
            return


def test_port_range_taken(tmp_path: Path) -> None:
    with taken_ports(3) as (first, last):
        environment = {"ATOLL_PORTS": f"{first}-{last}", "ATOLL_TRANSPORT": "tcp", "ATOLL_ADDRESS": "127.0.0.1"}
        with Job(tmp_path, join_and_sum, "AA", environment=environment) as job:
            since = max(event.at for event in job.wait_for("joining").values())
            for failure in job.failures(range(2), since, LATE_S).values():
                assert "ATOLL_PORTS" in failure.text
                assert f"{first}-{last}" in failure.text


def sum_unreachably(me: Me) -> None:
    me.join(JOIN_S)
    me.tell("joined")
    me.check_sum()


def test_unreachable_address(tmp_path: Path) -> None:
    environment = {"ATOLL_ADDRESS": NOBODYS, "ATOLL_TRANSPORT": "tcp"}
    with Job(tmp_path, sum_unreachably, "AAA", environment=environment) as job:
        since = max(event.at for event in job.wait_for("joined").values())
        for rank, failure in job.failures(range(3), since, JOIN_S + LATE_S).items():
            assert re.search(r"\brank \d\b", failure.text), f"rank {rank}: {failure.text}"
            assert NOBODYS in failure.text, f"rank {rank}: {failure.text}"


def test_address_that_only_some_can_reach(tmp_path: Path) -> None:
    """Only one of two peers can reach the other, which is enough for a link."""
    own = {1: {"ATOLL_ADDRESS": NOBODYS}}
    with Job(tmp_path, join_and_sum, "AA", (20.0,), {"ATOLL_TRANSPORT": "tcp"}, own) as job:
        job.wait_for("end")
        job.check_ends()


SCARCE_S = 2.0


def run_short_of_descriptors(me: Me, spare: int) -> None:
    me.tell("ready")
    me.listen()
    if me.rank == 1:
        used = len(os.listdir("/proc/self/fd")) - 1
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
    me.tell("joining")
    me.join(SCARCE_S)
    for _ in range(2):  # rank 1 may fail in the first call after it has done what rank 0 needs
        me.check_sum()
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", [later("shm"), "tcp"])
def test_descriptor_limit(tmp_path: Path, transport: str) -> None:
    """However few descriptors are left: everything works, or rank 1 raises with what is missing and rank 0 in time
    as well."""
    worked = []
    for spare in (2, 5, 8, 10, 13, 40):
        folder = tmp_path / str(spare)
        folder.mkdir()
        with Job(folder, run_short_of_descriptors, "AA", (spare,), {"ATOLL_TRANSPORT": transport}) as job:
            since = let_join(job)
            ends = {}
            for rank in (0, 1):
                job.processes[rank].join(SCARCE_S + LATE_S + 5)
                assert job.processes[rank].exitcode is not None, f"rank {rank} hangs with {spare} descriptors left"
                ends[rank] = job.processes[rank].exitcode
            assert ends in ({0: 0, 1: 0}, {0: 1, 1: 1}), f"{spare} left: exit codes {ends}"
            worked.append(ends[1] == 0)
            if not worked[-1]:
                failures = job.failures([0], since, SCARCE_S + LATE_S)
                assert "rank 1" in failures[0].text
                (event,) = job.wait_for("error", [1]).values()
                assert re.search(r"descriptor|open files|EMFILE|errno 24", event.details[1]), event.details
    assert not worked[0]
    assert worked[-1]
