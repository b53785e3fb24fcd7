# SPDX-License-Identifier: Apache-2.0
"""A real server with replayed bytes, hostile models, dead workers, a full disk and many robots: only the client
concerned is affected, and it is told why."""

import os
import resource
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.infer.planning.profile_command import host_and_port
from faulty_link import UP, FaultyLink
from processes import children
from serving import Serve
from split_cases import LIMIT, READY_S, check, session_of, until_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("serve"), "--metrics", "0") as server:
        yield server
        assert server.stop() == 0, server.output


def wait_for(condition: Callable[[], bool], told: Callable[[], Any] = lambda: "") -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < READY_S, told()
        time.sleep(0.01)


def counters(server: Serve) -> dict[str, float]:
    """Returns the counters of the server's metrics."""
    wait_for(lambda: "metrics on " in server.output)
    address = server.output.partition("metrics on ")[2].split()[0]
    lines = urllib.request.urlopen(address, timeout=LIMIT).read().decode().splitlines()
    pairs = (line.split() for line in lines if line.startswith("atoll_serve_"))
    return {name.removeprefix("atoll_serve_").removesuffix("_total"): float(value) for name, value in pairs}


def test_a_recorded_connection_cannot_be_played_back(server: Serve) -> None:
    with FaultyLink(server.address) as link, session_of(link.address, server.key_file) as session:
        until_server(session)
        recorded = bytes(link.pairs[-1].carried[UP])
    before = counters(server)
    answered = b""
    with socket.create_connection(host_and_port(server.address), timeout=LIMIT) as stranger, suppress(ConnectionError):
        stranger.sendall(recorded)
        while data := stranger.recv(1 << 16):
            answered += data
    wait_for(lambda: counters(server)["refused"] == before["refused"] + 1, lambda: counters(server))
    after = counters(server)
    assert after["accepted"] == before["accepted"] + 1
    assert after["inferences"] == before["inferences"]
    assert after["uploads"] == before["uploads"]
    assert len(answered) < 4096, "no more than a handshake"


def test_a_worker_that_dies_is_its_clients_loss_alone(server: Serve) -> None:
    with session_of(server.address, server.key_file) as one, session_of(server.address, server.key_file) as other:
        for session in (one, other):
            until_server(session)
        wait_for(lambda: len(children(server.process.pid)) == 2)  # the workers of earlier sessions have ended
        victim, survivor = children(server.process.pid)
        os.kill(victim, signal.SIGKILL)
        for number in range(20):
            for session in (one, other):
                check(session, number)
        for session in (one, other):
            until_server(session)
        now = children(server.process.pid)
        assert len(now) == 2
        assert survivor in now
        assert victim not in now


class Folded(nn.Module):
    """Calls an operator with a known crash in the right way."""

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        return nn.functional.fold(columns, (4, 4), (2, 2))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(image))


def test_a_hostile_model_is_refused_and_nothing_else_happens(server: Serve) -> None:
    example, why = torch.ones(1, 8, 9), "not on the server's list"
    with session_of(server.address, server.key_file) as good:
        until_server(good)
        wait_for(lambda: len(children(server.process.pid)) == 1)  # the workers of earlier sessions have ended
        workers = children(server.process.pid)
        options = {"server": server.address, "key_file": server.key_file, "policy": "offload"}
        with atoll.infer.Session(Folded().eval(), example, profile_seconds=0.01, **options) as hostile:
            wait_for(lambda: why in hostile.report()["link"]["text"], hostile.report)
            with pytest.raises(atoll.infer.RefusedError, match=why):
                hostile.wait_until_ready(0)
            hostile(example)
            assert hostile.last is not None
            assert hostile.last.origin == "local"
            until_server(good)
        assert set(workers) <= set(children(server.process.pid)), "a worker of another client has ended"
        check(good)


def test_a_full_cache_disk_is_told_and_the_model_is_sent_later(tmp_path: Path) -> None:
    with Serve(tmp_path) as server:
        files = resource.RLIMIT_FSIZE
        before = resource.prlimit(server.process.pid, files)
        resource.prlimit(server.process.pid, files, (100_000, before[1]))
        with session_of(server.address, server.key_file) as session:
            said = "File too large (errno 27): free some space there"
            wait_for(lambda: said in session.report()["link"]["text"], session.report)
            for number in range(10):
                assert check(session, number).origin == "local"
            resource.prlimit(server.process.pid, files, before)
            until_server(session)
        assert server.stop() == 0, server.output


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_fifty_robots_at_once(tmp_path: Path) -> None:
    """With eight processes for models the other robots are told to wait, and compute alone until it is their turn."""
    with Serve(tmp_path, "--models", "8") as server:
        sessions = [session_of(server.address, server.key_file) for _ in range(50)]

        def use(session: atoll.infer.Session) -> list[str]:
            return [check(session, number).origin for number in range(40)]

        with ThreadPoolExecutor(len(sessions)) as pool:
            origins = list(pool.map(use, sessions))
        assert len(origins) == 50
        wait_for(lambda: len(children(server.process.pid)) == 8, lambda: children(server.process.pid))
        waiting = [session for session in sessions if "before you" in session.report()["link"]["text"]]
        assert len(waiting) >= 40, [session.report()["link"] for session in sessions]
        left = list(sessions)
        while left:
            wait_for(lambda: any(session.wait_until_ready(0) for session in left))
            ready = next(session for session in left if session.wait_until_ready(0))
            until_server(ready)
            ready.close()
            left.remove(ready)
        assert server.stop() == 0, server.output
