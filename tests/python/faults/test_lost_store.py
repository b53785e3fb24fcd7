# SPDX-License-Identifier: Apache-2.0
"""A store whose server has ended, or runs but does not answer: a rank that makes a group gets an error in time."""

import contextlib
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from fault_jobs import Job, Me, expected, process_ends

AT_ONCE_S, LIMIT_S, LATE_S = 6.0, 3.0, 4.0


def pass_on(one: socket.socket, other: socket.socket) -> None:
    """Forwards bytes between two sockets until either ends."""
    with one, other:
        while True:
            for source in select.select([one, other], [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                (other if source is one else one).sendall(data)


@contextlib.contextmanager
def one_connection_to(port: int, *, then_refuses: bool) -> Iterator[int]:
    """Opens a port that forwards one connection to `port`, and then refuses others, or lets them wait forever."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:

        def serve() -> None:
            near, _ = listener.accept()
            if then_refuses:
                listener.close()
            pass_on(near, socket.create_connection(("127.0.0.1", port)))

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield listener.getsockname()[1]


def join_by_a_store_of_one_connection(me: Me, then_refuses: bool) -> None:
    limit_s = 60.0 if then_refuses else LIMIT_S
    with one_connection_to(me.port, then_refuses=then_refuses) as port:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        begin = time.monotonic()
        with expected("DistStoreError") as texts:
            dist.init_process_group(
                "atoll", store=store, rank=me.rank, world_size=me.size, timeout=timedelta(seconds=limit_s)
            )
        took_s = time.monotonic() - begin
    me.tell("said", (texts[0], took_s))


@pytest.mark.parametrize(
    ("then_refuses", "within_s", "says"),
    [
        (True, AT_ONCE_S, "the job's store has ended or cannot be reached: cannot connect to 127.0.0.1:"),
        (False, LIMIT_S + LATE_S, "did not answer in time while Atoll connected to it"),
    ],
    ids=["refuses", "keeps silent"],
)
def test_a_store_that_takes_no_more_connections(tmp_path: Path, then_refuses: bool, within_s: float, says: str) -> None:
    with Job(tmp_path, join_by_a_store_of_one_connection, "A", (then_refuses,)) as job:
        text, took_s = job.wait_for("said")[0].details
        assert says in text
        assert took_s < within_s


def serve_store(me: Me) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    me.tell("store", store.port)
    me.listen()


def lose_the_store(me: Me) -> None:
    me.join(port=me.listen())
    me.check_sum()
    me.tell("running")
    me.listen()
    for _ in range(10):
        me.check_sum()  # needs no store
    begin = time.monotonic()
    with expected() as texts:
        dist.new_group([0, 1, 2], timeout=timedelta(seconds=5))
    assert time.monotonic() - begin < 6
    me.tell("said", texts[0])
    me.check_sum()
    dist.destroy_process_group()


# Proves S-8.
def test_a_store_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with Job(tmp_path / "store", serve_store, "A") as server, Job(tmp_path, lose_the_store, "ABA") as job:
        port = server.wait_for("store")[0].details
        for rank in range(3):
            job.send(rank, port)
        job.wait_for("running")
        server.signal(0)
        assert process_ends(server.pid(0), 5)
        for rank in range(3):
            job.send(rank, "the store is gone")
        for event in job.wait_for("said").values():
            assert "store" in event.details.lower()
        job.wait_for("end")
        job.check_ends()


def make_a_group_without_answers(me: Me) -> None:
    me.join(port=me.listen())
    me.tell("running")
    me.listen()
    begin = time.monotonic()
    with expected("DistStoreError") as texts:
        dist.new_group([0, 1], timeout=timedelta(seconds=LIMIT_S))
    me.tell("said", (texts[0], time.monotonic() - begin))
    me.check_sum()


# Proves S-8.
def test_a_stopped_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with Job(tmp_path / "store", serve_store, "A") as server, Job(tmp_path, make_a_group_without_answers, "AB") as job:
        port = server.wait_for("store")[0].details
        for rank in range(job.size):
            job.send(rank, port)
        job.wait_for("running")
        server.signal(0, signal.SIGSTOP)
        for rank in range(job.size):
            job.send(rank, "the store has stopped")
        for event in job.wait_for("said").values():
            text, took_s = event.details
            assert "did not answer in time" in text
            assert took_s < LIMIT_S + LATE_S
        job.wait_for("end")
