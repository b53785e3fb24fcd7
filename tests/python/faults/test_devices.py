# SPDX-License-Identifier: Apache-2.0
"""A device that is slow, or that has failed for good: callers that wait for it get an error in time, and nothing
else is delayed."""

import itertools
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from fault_jobs import Job, Me, expected

DEATH_S = 2.0
SIM = {"ATOLL_DEVICE": "sim"}
SLOW = SIM | {"ATOLL_SIM_BANDWIDTH": "1M"}
SECOND = 250_000  # elements that such a device copies to the host per second
MANY = 5000  # operations: checking all of them takes some milliseconds


def send_beside_a_slow_device(me: Me) -> None:
    me.join()
    me.check_sum(10)
    if me.rank == 0:
        slow = dist.isend(torch.ones(4 * SECOND, device="sim"), 1, tag=1)
        quick = dist.isend(torch.full((3,), 7.0), 1, tag=2)
        answer = torch.zeros(3)
        dist.recv(answer, 1, tag=3)
        assert not slow.is_completed(), "the answer had to wait for the device"
        for work in (slow, quick):
            work.wait()
        return
    few, many = torch.zeros(3), torch.zeros(4 * SECOND)
    dist.recv(few, 0, tag=2)
    dist.send(few, 0, tag=3)
    dist.recv(many, 0, tag=1)
    assert few.eq(7).all()
    assert many.eq(1).all()


def test_messages_do_not_wait_for_those_of_a_slow_device(tmp_path: Path) -> None:
    with Job(tmp_path, send_beside_a_slow_device, "AB", environment=SLOW) as job:
        job.wait_for("end")


def send_from_a_stalled_device(me: Me) -> None:
    me.join()
    me.check_sum(10)
    begin = time.monotonic()
    with expected() as texts:
        if me.rank == 0:
            me.limit(1, "sim")
            dist.isend(torch.ones(40 * SECOND, device="sim"), 1).wait()
        else:
            dist.recv(torch.zeros(40 * SECOND), 0)
    assert "its bytes have not arrived from the device" in texts[0], texts
    assert time.monotonic() - begin < 10


def test_a_send_ends_at_its_deadline_though_the_device_stalls(tmp_path: Path) -> None:
    with Job(tmp_path, send_from_a_stalled_device, "AB", environment=SLOW) as job:
        job.wait_for("end")


def fail_on(threads: str) -> None:
    """Makes the device of this process appear failed to these threads from now on."""
    from atoll import _sim

    _sim.pretend_failed(threads)


def send_from_a_failed_device(me: Me) -> None:
    me.join()
    me.check_sum()
    me.run_together()
    if me.rank == 0:
        fail_on("atoll-sends")
    tensor = torch.zeros(3, device="sim")
    dist.send(tensor, 1) if me.rank == 0 else dist.recv(tensor, 0)


def test_a_send_from_a_failed_device(tmp_path: Path) -> None:
    with Job(tmp_path, send_from_a_failed_device, "AB", environment=SIM) as job:
        at = max(event.at for event in job.wait_for("running").values())
        for failure in job.failures([0, 1], at, DEATH_S).values():
            assert "the device has failed" in failure.text, failure.text


def reduce_on_a_failed_device(me: Me, count: int) -> None:
    me.join()
    me.check_sum(count)
    me.run_together()
    if me.rank == 1:
        fail_on("atoll-watch")
    while True:
        me.check_sum(count)


# Proves D-5.
def test_a_device_that_fails_under_the_library(tmp_path: Path) -> None:
    with Job(tmp_path, reduce_on_a_failed_device, "AA", (300_007,), SIM) as job:
        at = max(event.at for event in job.wait_for("running").values())
        failures = job.failures([0, 1], at, DEATH_S)
        assert "the device has failed" in failures[1].text, failures[1].text


def abort_amid_calls(me: Me, rounds: int) -> None:
    """Reads each result at once, while another thread aborts the group: an operation issued after the group has failed
    ends with an exception, never with what its memory happened to hold."""
    me.join()
    me.check_sum(10)
    for turn in range(rounds):
        group = dist.new_group()
        me.check_sum(10, group)
        now = threading.Event()
        aborting = threading.Thread(
            target=lambda group=group, now=now: now.wait() and group._get_backend(torch.device("sim")).abort()
        )
        if me.rank == turn % 2:
            aborting.start()
        with expected():
            for step in itertools.count():
                me.check_sum(10, group)
                if step == turn % 5:
                    now.set()
        if me.rank == turn % 2:
            aborting.join()
        me.check_sum(10)


# Proves D-5.
def test_no_result_of_an_aborted_library_is_used(tmp_path: Path) -> None:
    with Job(tmp_path, abort_amid_calls, "AA", (40,), SIM) as job:
        job.wait_for("end")


def end_while_the_failure_is_reported(me: Me) -> None:
    """The program ends while one of its threads is still in Python, reporting the failure."""
    from atoll import _C, backend

    def tell_slowly(thread: int, peer_lost: bool, text: str) -> None:
        backend._interrupt(thread, peer_lost, text)
        for _ in range(200):
            time.sleep(0.005)  # takes Python's lock again and again

    me.join()
    me.check_sum()
    me.run_together()
    if me.rank == 1:
        _C.set_interrupt(tell_slowly, backend._take_back, threading.main_thread().ident or 0)
        fail_on("atoll-")  # threads that notice the failure, and those that report it
    while True:
        me.check_sum()


def test_a_program_that_ends_while_its_failure_is_reported(tmp_path: Path) -> None:
    with Job(tmp_path, end_while_the_failure_is_reported, "AA", environment=SIM) as job:
        at = max(event.at for event in job.wait_for("running").values())
        job.failures([0, 1], at, DEATH_S)


def deal_with_a_failure(me: Me) -> None:
    """A call raises the failure while a slow thread is about to interrupt the program for the same failure."""
    from atoll import _C, backend

    def interrupt_late(thread: int, peer_lost: bool, text: str) -> None:
        time.sleep(0.3)
        backend._interrupt(thread, peer_lost, text)

    me.join()
    me.check_sum()
    _C.set_interrupt(interrupt_late, backend._take_back, threading.main_thread().ident or 0)
    tensor = torch.ones(1000, device="sim")
    me.run_together()
    if me.rank == 1:
        fail_on("atoll-watch")
    with expected() as texts:
        while True:
            dist.all_reduce(tensor)
    assert "the device has failed" in texts[0], texts
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        pass  # the program handles the failure: a second exception would be raised here


# Proves D-6.
def test_a_failure_is_raised_once(tmp_path: Path) -> None:
    with Job(tmp_path, deal_with_a_failure, "AA", environment=SIM) as job:
        job.wait_for("end")


def wait_again_after_the_failure(me: Me) -> None:
    """A call raises the failure; then the program waits for an earlier operation that has not ended either. The
    library is about to be aborted, but many operations have to be checked first."""
    from atoll import backend

    me.join()
    me.check_sum()
    me.run_together()
    if me.rank == 1:
        me.listen()
        return
    tensors = [torch.ones(1, device="sim") for _ in range(MANY)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    backend.backend_of().abort()
    for call in (lambda: dist.all_reduce(torch.ones(3)), works[-1].wait):
        with expected() as texts:
            call()
        assert "abort() was called" in texts[0], texts
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        pass  # a second exception would be raised here


# Proves D-6.
def test_waiting_again_after_a_failure_ends(tmp_path: Path) -> None:
    with Job(tmp_path, wait_again_after_the_failure, "AA", environment=SIM) as job:
        job.wait_for("running")
        job.wait_for("end", [0])
        job.send(1, "go")


def wait_while_a_peer_aborts(me: Me) -> None:
    import atoll

    me.join()
    dist.all_reduce(torch.ones(1))  # on the CPU: links are open, and the library has not been used
    tensor = torch.ones(1000, device="sim")
    if me.rank == 0:
        fail_on("atoll-done")  # the thread that aborts the library
        work = dist.all_reduce(tensor, async_op=True)
        me.tell("running")
        work.wait()
        raise AssertionError(f"no exception, but {tensor[0].item()}")
    me.tell("running")
    me.listen()
    atoll.backend.backend_of().abort()
    dist.all_reduce(tensor)


def test_the_library_is_ended_whatever_the_device_says(tmp_path: Path) -> None:
    with Job(tmp_path, wait_while_a_peer_aborts, "AA", environment=SIM) as job:
        at = max(event.at for event in job.wait_for("running").values())
        job.send(1, "abort")
        job.failures([0, 1], at, DEATH_S)


def complete_on_a_failed_device(me: Me) -> None:
    me.join()
    me.check_sum(10)
    tensor = torch.ones(SECOND, device="sim")
    if me.rank == 0:
        fail_on("atoll-done")  # the thread that completes futures
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    if me.rank == 1:
        work.wait()
        assert tensor.eq(2).all().item()
        return
    for wait in (work.wait, future.wait):
        try:
            wait()
        except RuntimeError as error:
            assert "the device has failed" in str(error), error
        else:
            raise AssertionError("no exception")
    assert work.is_completed()


def test_a_future_of_a_failed_device(tmp_path: Path) -> None:
    with Job(tmp_path, complete_on_a_failed_device, "AB", environment=SLOW) as job:
        job.wait_for("end")
