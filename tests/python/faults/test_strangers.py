# SPDX-License-Identifier: Apache-2.0
"""Strangers that connect to the listeners do not disturb a job."""

import random
import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from fault_jobs import Job, Me
from listeners import listening_names, listening_ports


def sum_until_told(me: Me) -> None:
    me.join()
    me.check_sum()
    me.tell("running")
    while True:
        me.check_sum(50_000)
        stop = [me.connection.poll() if me.rank == 0 else None]
        dist.broadcast_object_list(stop)
        if stop[0]:
            break
    dist.destroy_process_group()


def connect(address: int | str) -> socket.socket:
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        return connection
    return socket.create_connection(("127.0.0.1", address), timeout=5)


def disturb(address: int | str, seed: int) -> list[socket.socket]:
    """Sends garbage of many lengths and an HTTP request, opens connections that send nothing, and keeps some open."""
    noise = random.Random(seed)
    stay = []
    for length in (0, 1, 3, 8, 16, 64, 200, 5000, 200_000):
        connection = connect(address)
        try:
            connection.sendall(noise.randbytes(length))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the listener hung up, as it should
        connection.close()
    connection = connect(address)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    stay.append(connection)
    stay += [connect(address) for _ in range(30)]
    half = connect(address)
    half.sendall(b"ATOL")
    return [*stay, half]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_garbage_while_a_job_runs(tmp_path: Path, transport: str) -> None:
    with Job(tmp_path, sum_until_told, "ABA", environment={"ATOLL_TRANSPORT": transport}) as job:
        job.wait_for("running")
        stay: list[socket.socket] = []
        for rank in range(3):
            addresses = [*listening_ports(job.pid(rank)), *listening_names(job.pid(rank))]
            assert addresses, f"rank {rank} listens nowhere"
            for address in addresses:
                stay += disturb(address, seed=rank)
        job.send(0, "stop")
        job.wait_for("end")
        job.check_ends()
        for connection in stay:
            connection.close()


def sum_late(me: Me) -> None:
    me.join(seconds=20)
    me.tell("joined")
    me.listen()
    for _ in range(20):
        me.check_sum()
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_garbage_before_links_open(tmp_path: Path, transport: str) -> None:
    with Job(tmp_path, sum_late, "ABA", environment={"ATOLL_TRANSPORT": transport}) as job:
        job.wait_for("joined")
        stay: list[socket.socket] = []
        for rank in range(3):
            for address in [*listening_ports(job.pid(rank)), *listening_names(job.pid(rank))]:
                stay += disturb(address, seed=10 + rank)
        for rank in range(3):
            job.send(rank, "go on")
        job.wait_for("end")
        job.check_ends()
        for connection in stay:
            connection.close()
