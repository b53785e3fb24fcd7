# SPDX-License-Identifier: Apache-2.0
"""Groups come and go without leaving anything, limits of the system are clear errors, and programs may end in any
way."""

import ctypes
import gc
import itertools
import multiprocessing
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from fault_jobs import END_S, Job, Me
from forking import end_in_full
from listeners import connections_with, own_sockets, sockets_of
from support import later

SCARCE_S = 3.0
LATE_S = 2.0
WARM_UP = 20  # groups until caches are full
SETTLE_S = 10  # the system lists ended threads for a moment longer
# kB of memory in the second half of the cycles. A link keeps the channels that were closed, because an id is used once:
# a cycle leaves about 0.5 kB, and over TCP, whose channels are larger, up to 3 kB on a rank with several links.
MAX_GROWTH = {"shm": 768, "tcp": 2048}
CYCLES = [60, pytest.param(1000, marks=[pytest.mark.verify, pytest.mark.timeout(900)])]


def held() -> dict[str, Any]:
    """Returns the system resources that this process holds, except memory."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    mine = sockets_of(os.getpid())
    abstract = [line.split() for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mapped files in memory": sum("/memfd:" in line for line in maps),
        "mapped shared memory": sum("/dev/shm/" in line for line in maps),
        "abstract sockets": sum(len(each) == 8 and each[6] in mine and each[7].startswith("@") for each in abstract),
    }


def kilobytes() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0])


def more_than(before: dict[str, Any]) -> dict[str, Any]:
    """Returns what this process holds in addition to `before`, after resources that are being released are gone."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = held()
        more = {name: f"{after[name]}, before {count}" for name, count in before.items() if after[name] > count}
        if not more or time.monotonic() > deadline:
            return more
        time.sleep(0.01)


def check_flat(turn: Callable[[], None], times: int, most_growth: int) -> None:
    """Checks that no system resources are left, and that the second half of the turns takes little memory, in kB: by
    then caches are full, and a leak in each turn would add up."""
    for _ in range(WARM_UP):
        turn()
    before, grown = held(), []
    for _ in range(2):
        memory = kilobytes()
        for _ in range(times // 2):
            turn()
        grown.append(kilobytes() - memory)
    leaked = more_than(before)
    assert not leaked, f"{leaked}, after {times} times"
    assert grown[1] <= most_growth, f"{grown} kB more memory in the halves of {times} times"


def make_and_destroy(me: Me, times: int, most_growth: int) -> None:
    me.join()

    def turn() -> None:
        group = dist.new_group()
        me.check_sum(1000, group)
        dist.destroy_process_group(group)

    check_flat(turn, times, most_growth)
    dist.destroy_process_group()


@pytest.mark.parametrize("times", CYCLES)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_groups_come_and_go(tmp_path: Path, transport: str, times: int) -> None:
    with Job(tmp_path, make_and_destroy, "ABA", (times, MAX_GROWTH[transport]), {"ATOLL_TRANSPORT": transport}) as job:
        job.wait_for("end", seconds=60 if times <= 100 else 800)
        job.check_ends()


def join_and_leave(me: Me, times: int) -> None:
    import atoll  # noqa: F401

    limit, turns = timedelta(seconds=60), itertools.count()
    store = dist.TCPStore("127.0.0.1", me.port, is_master=False, timeout=limit)

    def turn() -> None:
        prefixed = dist.PrefixStore(str(next(turns)), store)
        dist.init_process_group("atoll", store=prefixed, rank=me.rank, world_size=me.size, timeout=limit)
        me.check_sum()
        dist.destroy_process_group()

    check_flat(turn, times, MAX_GROWTH["shm"])


@pytest.mark.parametrize("times", [20, *CYCLES[1:]])
def test_jobs_come_and_go_in_one_process(tmp_path: Path, times: int) -> None:
    with Job(tmp_path, join_and_leave, "AB", (times,)) as job:
        job.wait_for("end", seconds=60 if times <= 100 else 800)
        job.check_ends()


def leave_less_memory(spare: int) -> None:
    """Limits this process to that many more bytes of address space from now on."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = int(status["VmSize"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run_short_of_memory(me: Me, spare: int, made: bool) -> None:
    """Memory becomes short before groups are made, or afterwards but before any call."""
    import atoll.backend  # noqa: F401 - imported first, so that the linker does not run short

    count = 300_007
    me.tell("ready")
    me.listen()
    if made:
        me.join(SCARCE_S)
    tensor = torch.ones(count)
    if me.rank == 1:
        leave_less_memory(spare)
    me.tell("short")
    if not made:
        me.join(SCARCE_S)
    for _ in range(3):
        dist.all_reduce(tensor.fill_(1))
        assert tensor[0] == 2
        assert tensor[-1] == 2
    dist.destroy_process_group()


MEMORY = re.compile(r"memory|errno 12|errno 11|ENOMEM|bad_alloc|thread|Cannot allocate", re.IGNORECASE)


PLENTY = 1 << 33
FEW = (1 << 22, PLENTY)
MANY = (0, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, PLENTY)


@pytest.mark.parametrize(
    ("made", "transport", "spares"),
    [
        (False, "shm", FEW),
        (True, "tcp", FEW),
        *(later(made, transport, MANY) for made in (False, True) for transport in ("shm", "tcp")),
    ],
)
def test_memory_limit(tmp_path: Path, made: bool, transport: str, spares: tuple[int, ...]) -> None:
    """However little memory is left: everything works, or rank 1 raises with what is missing and rank 0 in time as
    well."""
    for spare in spares:
        folder = tmp_path / str(spare)
        folder.mkdir()
        arguments = (spare, made)
        with Job(folder, run_short_of_memory, "AB", arguments, {"ATOLL_TRANSPORT": transport}) as job:
            for rank in job.wait_for("ready"):
                job.send(rank, "go on")
            since = max(event.at for event in job.wait_for("short").values())
            ends = {}
            for rank in (0, 1):
                job.processes[rank].join(SCARCE_S + LATE_S + END_S)
                assert job.processes[rank].exitcode is not None, f"rank {rank} hangs with {spare} bytes left"
                ends[rank] = job.processes[rank].exitcode
            assert ends in ({0: 0, 1: 0}, {0: 1, 1: 1}), f"{spare} bytes left: exit codes {ends}"
            if ends[1] != 0:
                assert spare < PLENTY
                failures = job.failures([0], since, SCARCE_S + LATE_S)
                assert "rank 1" in failures[0].text
                (event,) = job.wait_for("error", [1]).values()
                assert MEMORY.search(event.details[1]) or event.details[0] == "MemoryError", event.details


def end_normally() -> None:
    pass


def end_by_exit() -> None:
    sys.exit(3)


def end_by_exception() -> None:
    raise KeyError("what the program did wrong")


def end_at_once() -> None:
    sys.stdout.flush()
    os._exit(4)


WAYS: dict[Callable[[], None], int] = {end_normally: 0, end_by_exit: 3, end_by_exception: 1, end_at_once: 4}
CRASHED = re.compile(r"terminate called|Fatal Python|Segmentation|core dumped|AddressSanitizer|what\(\):")


def leave(me: Me, way: Callable[[], None], pending: bool) -> None:
    end_in_full()
    me.join()
    group = dist.new_group()
    me.check_sum()
    me.check_sum(group=group)
    if pending:
        tensors = [torch.ones(100_000) for _ in range(4)]
        me.works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]  # type: ignore[attr-defined]
        me.works[0].get_future().add_done_callback(lambda future: None)  # type: ignore[attr-defined]
    me.tell("leaving")
    way()


@pytest.mark.parametrize(
    ("way", "pending"),
    [
        (end_at_once, True),
        *(later(way, pending) for way in WAYS for pending in (False, True)),
    ],
)
def test_ends_without_destroying(tmp_path: Path, way: Callable[[], None], pending: bool) -> None:
    with Job(tmp_path, leave, "ABA", (way, pending)) as job:
        job.wait_for("leaving")
        job.check_ends(code=WAYS[way])
        said = "\n".join(path.read_text() for path in tmp_path.glob("rank*.log"))
        assert not CRASHED.search(said), said


class Links(Dataset[int]):
    """Each item is the number of sockets of `links` that the worker reading it holds."""

    def __init__(self, links: set[str]) -> None:
        self.links = links

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return len(self.links & set(own_sockets().values()))


def load_beside_calls(me: Me) -> None:
    """Forks workers while operations run; they must hold none of the links."""
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    me.join()
    me.check_sum()
    me.tell("joined", os.getpid())
    pids = me.listen()
    sockets = own_sockets()
    links = {sockets[number] for pid in pids if pid != os.getpid() for number in connections_with(pid)}
    assert links, "no link is open"
    for _ in range(2):
        works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(8)]
        loader = DataLoader(Links(links), batch_size=3, num_workers=2, multiprocessing_context="fork")
        for batch in loader:
            assert batch.tolist() == [0, 0, 0], "a worker holds links of its parent"
            me.check_sum()
        for work in works:
            work.wait()
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", ["shm", later("tcp")])
def test_forked_workers_hold_no_links(tmp_path: Path, transport: str) -> None:
    with Job(tmp_path, load_beside_calls, "AB", (), {"ATOLL_TRANSPORT": transport}) as job:
        pids = [event.details for event in job.wait_for("joined").values()]
        for rank in range(2):
            job.send(rank, pids)
        job.wait_for("end")
        job.check_ends()


def answer(connection: Any) -> None:
    connection.send(torch.ones(3).sum().item())


def start_beside(me: Me, method: str) -> None:
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    me.join()
    me.check_sum()
    work = dist.all_reduce(torch.ones(50_000), async_op=True)
    context = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    child = context.Process(target=answer, args=(theirs,))  # type: ignore[attr-defined]
    child.start()
    assert mine.recv() == 3
    child.join()
    assert child.exitcode == 0
    work.wait()
    me.check_sum()
    dist.destroy_process_group()


@pytest.mark.parametrize("method", ["fork", later("spawn"), later("forkserver")])
def test_child_processes(tmp_path: Path, method: str) -> None:
    with Job(tmp_path, start_beside, "AB", (method,)) as job:
        job.wait_for("end")
        job.check_ends()


def sum_until_killed(me: Me) -> None:
    me.join()
    group = dist.new_group()
    me.tell("running")
    while True:
        me.check_sum(100_000)
        me.check_sum(1000, group)


def shared() -> set[str]:
    """Returns everything that a process could leave on the machine."""
    return {str(path) for folder in ("/dev/shm", "/dev/mqueue") for path in Path(folder).glob("*atoll*")}


# Proves T-9.
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_killed_jobs_leave_nothing(tmp_path: Path, device: str) -> None:
    before = shared()
    with Job(tmp_path, sum_until_killed, "AAB", environment={"ATOLL_DEVICE": device}) as job:
        job.wait_for("running")
        inodes = {inode for rank in range(3) for inode in sockets_of(job.pid(rank))}
        for rank in range(3):
            job.signal(rank)
        for rank in range(3):
            job.processes[rank].join()
        rest = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        assert [each for each in rest if each[6] in inodes and each[-1].startswith("@")] == []
    assert shared() <= before
