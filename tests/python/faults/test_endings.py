# SPDX-License-Identifier: Apache-2.0
"""Processes end by themselves, however they leave, and leave nothing behind."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import atoll
from fault_jobs import END_S, Job, Me, expected
from forking import end_in_full
from listeners import listening_names
from support import crossed, later

DRAIN_S = 10  # the time that pending operations get at the end


def leave_without_destroying(me: Me) -> None:
    end_in_full()
    me.join()
    group = dist.new_group()
    for _ in range(5):
        me.check_sum()
        me.check_sum(group=group)


def leave_amid_pending_work(me: Me) -> None:
    end_in_full()
    me.join()
    me.check_sum()
    if me.rank == 0:
        tensors = [torch.ones(100_000, device=atoll.device()) for _ in range(3)]
        me.pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]  # type: ignore[attr-defined]
        me.pending[0].get_future().add_done_callback(lambda future: None)  # type: ignore[attr-defined]
        sys.exit(7)
    me.listen()


def leave_amid_receives(me: Me) -> None:
    end_in_full()
    me.join()
    me.check_sum()
    me.pending = [dist.irecv(torch.empty(10), src=(me.rank + 1) % 3, tag=tag) for tag in range(3)]  # type: ignore[attr-defined]


def destroy_amid_receives(me: Me) -> None:
    me.join()
    me.check_sum()
    receive = dist.irecv(torch.empty(10), src=(me.rank + 1) % 3)
    sent = torch.full((300_000,), float(me.rank))
    received = torch.empty(300_000)
    answer = dist.irecv(received, src=(me.rank + 2) % 3, tag=1)
    dist.isend(sent, dst=(me.rank + 1) % 3, tag=1)
    answer.wait()
    assert received.eq((me.rank + 2) % 3).all()
    begin = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - begin < 5
    with expected():
        receive.wait()


def test_receives_without_a_message_hold_nobody_up(tmp_path: Path) -> None:
    with Job(tmp_path, destroy_amid_receives, "ABA") as job:
        job.wait_for("end")
        job.check_ends()


@pytest.mark.parametrize(("layout", "body"), crossed(["AAA", "ABA"], [leave_without_destroying, leave_amid_receives]))
def test_leaving_without_destroying(tmp_path: Path, body: object, layout: str) -> None:
    with Job(tmp_path, body, layout) as job:  # type: ignore[arg-type]
        job.wait_for("end")
        job.check_ends()


@pytest.mark.parametrize(
    ("layout", "environment"),
    [("ABA", {}), later("AAA", {"ATOLL_INNER": "cpu:gloo"}), later("AAA", {"ATOLL_DEVICE": "sim"})],
    ids=["atoll", "gloo", "simccl"],
)
def test_exit_amid_pending_work(tmp_path: Path, layout: str, environment: dict[str, str]) -> None:
    with Job(tmp_path, leave_amid_pending_work, layout, (), environment) as job:
        job.wait_for("end", [0])
        job.check_ends([0], code=7, seconds=DRAIN_S + END_S)
        for rank in (1, 2):
            job.send(rank, "leave")
        job.wait_for("end", [1, 2])
        job.check_ends([1, 2])


def join_again(me: Me) -> None:
    for _ in range(3):
        port = me.listen()
        me.join(port=port)
        me.check_sum()
        dist.destroy_process_group()
        me.tell("left")


def test_joining_again_after_destroying(tmp_path: Path) -> None:
    with Job(tmp_path, join_again, "ABA") as job:
        for _ in range(3):
            for rank in range(3):
                job.send(rank, job.store.port)  # the same store each time
            job.wait_for("left")
        job.wait_for("end")
        job.check_ends()


def load_with_workers(me: Me) -> None:
    end_in_full()
    me.join()
    me.check_sum()
    data = TensorDataset(torch.arange(24.0))
    loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
    for _ in range(2):
        total = torch.zeros(())
        for (batch,) in loader:
            me.check_sum()
            total += batch.sum()
        assert total == 276
    me.check_sum()


def test_forked_loader_workers(tmp_path: Path) -> None:
    with Job(tmp_path, unmark_daemon, "ABA", (load_with_workers,)) as job:
        job.wait_for("end")
        job.check_ends()


def unmark_daemon(me: Me, body: object) -> None:
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    body(me)  # type: ignore[operator]


def use_in_fork(me: Me) -> None:
    me.join()
    me.check_sum()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with expected("DistBackendError") as texts:
            me.check_sum()
        os.write(writing, texts[0].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "fork" in text
    me.check_sum()


def test_group_in_a_forked_child(tmp_path: Path) -> None:
    with Job(tmp_path, use_in_fork, "ABA") as job:
        job.wait_for("end")
        job.check_ends()


def leave_fork_ordinarily(me: Me) -> None:
    """The child shuts its interpreter down in the ordinary way, with the inherited group in it."""
    end_in_full()
    me.join()
    me.check_sum()
    child = os.fork()
    if child == 0:
        own = multiprocessing.Pipe()
        me.connection = own[0]  # the parent reports for the rank
        me.unheard = own[1]  # type: ignore[attr-defined]
        return
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(5):
        me.check_sum()
    dist.destroy_process_group()


def test_forked_child_that_leaves_ordinarily(tmp_path: Path) -> None:
    with Job(tmp_path, leave_fork_ordinarily, "ABA") as job:
        job.wait_for("end")
        job.check_ends()


def answer(connection: object) -> None:
    connection.send(torch.ones(3).sum().item())  # type: ignore[attr-defined]


def spawn_beside(me: Me) -> None:
    me.join()
    me.check_sum()
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    child = context.Process(target=answer, args=(theirs,))
    child.start()
    assert mine.recv() == 3
    child.join()
    me.check_sum()


@pytest.mark.verify
def test_spawned_child(tmp_path: Path) -> None:
    with Job(tmp_path, unmark_daemon, "AB", (spawn_beside,)) as job:
        job.wait_for("end")
        job.check_ends()


def sum_until_killed(me: Me) -> None:
    me.join()
    me.check_sum()
    me.tell("running")
    while True:
        me.check_sum(100_000)


def shared_files(pid: int) -> list[str]:
    """Returns the mappings of this process that would outlive it."""
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]


# Proves T-9.
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with Job(tmp_path, sum_until_killed, "AAA") as job:
        job.wait_for("running")
        names = [name for rank in range(3) for name in listening_names(job.pid(rank))]
        assert len(names) >= 3
        assert "memfd:" in Path(f"/proc/{job.pid(0)}/maps").read_text()
        assert [line for rank in range(3) for line in shared_files(job.pid(rank))] == []
        for rank in range(3):
            job.signal(rank)  # at once, because the others end when they notice that one has died
        for rank in range(3):
            job.processes[rank].join()
        still_there = Path("/proc/net/unix").read_text()
        assert [name for name in names if name[1:] in still_there] == []


def descriptors_and_threads() -> int:
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


def count_descriptors(me: Me) -> None:
    me.join()
    me.check_sum()

    def use_a_group() -> None:
        group = dist.new_group()
        me.check_sum(group=group)
        dist.destroy_process_group(group)
        me.check_sum()

    use_a_group()
    before = descriptors_and_threads()
    for _ in range(3):
        use_a_group()
    # The system lists a joined thread for a moment longer, and a descriptor that is being sent to a peer counts.
    deadline = time.monotonic() + 10
    while (after := descriptors_and_threads()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert after <= before, f"descriptors and threads grow: {before}, then {after}"


def test_groups_leave_no_descriptors_and_threads(tmp_path: Path) -> None:
    with Job(tmp_path, count_descriptors, "ABA") as job:
        job.wait_for("end")
        job.check_ends()


def fail_once(me: Me) -> None:
    me.join()
    for _ in range(3):
        me.check_sum()
    me.tell("running")
    while True:
        me.check_sum()


def dumps(folder: Path) -> dict[int, dict[str, object]]:
    found = (json.loads(path.read_text()) for path in folder.glob("atoll-*.json"))
    return {int(dump["rank"]): dump for dump in found}


def test_dump_after_a_failure(tmp_path: Path) -> None:
    with Job(tmp_path, fail_once, "ABA") as job:
        job.wait_for("running")
        at = job.signal(1)
        job.failures([0, 2], at, 2.0)
        found = dumps(tmp_path)
        assert set(found) == {0, 2}
        for dump in found.values():
            assert dump["error"]["kind"] == "peer_lost"  # type: ignore[index]
            assert "rank 1" in dump["error"]["message"]  # type: ignore[index]
            last = dump["operations"][-1]  # type: ignore[index]
            assert last["operation"] == "all_reduce"
            assert last["state"] in ("started", "failed")  # the dump may be written before the operation gives up
            assert last["bytes"] == 4000
            assert [event["sequence"] for event in dump["operations"]] == sorted(  # type: ignore[attr-defined]
                event["sequence"]
                for event in dump["operations"]  # type: ignore[attr-defined]
            )


def sum_on_request(me: Me) -> None:
    me.join()
    while (count := me.listen()) is not None:
        me.check_sum(count)
        me.tell("summed", atoll.dump()["operations"][-1]["sequence"])


def test_dump_on_request(tmp_path: Path) -> None:
    with Job(tmp_path, sum_on_request, "ABA") as job:
        found: dict[int, dict[str, object]] = {}
        asked = False
        last = {}
        while not found:
            for rank in range(3):
                job.send(rank, 123)
            last = job.wait_for("summed")
            if not asked:
                job.signal(2, signal.SIGUSR1)
                asked = True
            if list(tmp_path.glob("atoll-*.json")):
                found = dumps(tmp_path)
        assert set(found) == {2}
        operations = found[2]["operations"]
        assert operations[-1]["operation"] == "all_reduce"  # type: ignore[index]
        assert operations[0]["bytes"] == 492  # type: ignore[index]
        assert operations[0]["state"] == "completed"  # type: ignore[index]
        assert "error" not in found[2]
        assert last[2].details >= operations[-1]["sequence"] - 1  # type: ignore[index]
        for rank in range(3):
            job.send(rank, None)
        job.wait_for("end")
        job.check_ends()
