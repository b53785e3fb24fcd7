# SPDX-License-Identifier: Apache-2.0
"""ATOLL_TLS: the same training, unreadable on the wire, and nothing is sent in clear by mistake."""

import contextlib
import hashlib
import re
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import atoll
from fault_jobs import Job, Me
from training import check_equal_bits, network, train_together

PATTERN = b"a pattern that nobody but the other rank is to read. "
PATIENCE_S = 20.0


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_bytes(b"k" * 32)
    return str(path)


def train(me: Me) -> None:
    me.join()
    model = torch.nn.parallel.DistributedDataParallel(network())
    losses = train_together(model, me.rank, steps=5)
    check_equal_bits(model)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()
    me.tell("trained", (losses, digest, atoll.links()))
    dist.destroy_process_group()


@pytest.mark.parametrize("rails", ["1", "127.0.0.1,127.0.0.2"])
def test_training_has_the_same_bits_inside_tls(tmp_path: Path, key: str, rails: str) -> None:
    """Four ranks on two hosts, so that both shared memory and TCP are used."""
    results: dict[str, Any] = {}
    own = {rank: {"ATOLL_HOST": f"host{rank // 2}"} for rank in range(4)}
    for tls in ("", "1"):
        folder = tmp_path / f"tls{tls}"
        folder.mkdir()
        environment = {"ATOLL_KEY_FILE": key, "ATOLL_TLS": tls, "ATOLL_ADDRESS": "127.0.0.1", "ATOLL_RAILS": rails}
        if rails != "1":
            del environment["ATOLL_ADDRESS"]
        with Job(folder, train, "AABB", environment=environment, own=own) as job:
            results[tls] = {rank: event.details for rank, event in job.wait_for("trained").items()}
            job.wait_for("end")
            job.check_ends()
    for rank in range(4):
        assert results["1"][rank][:2] == results[""][rank][:2]
        for peer, link in results["1"][rank][2].items():
            assert (" in TLS" in link) == (peer // 2 != rank // 2), link
        assert not any("TLS" in link for link in results[""][rank][2].values())
    assert any(" in TLS" in link for link in results["1"][0][2].values())


class Tap:
    """Forwards connections to a port of this process, and records the bytes."""

    def __init__(self) -> None:
        self.passed = bytearray()
        self.target = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self.target))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ways in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=ways, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.passed += data
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)


class TappedStore(dist.Store):
    """A store through which this rank advertises its tap's port as its own."""

    def __init__(self, inner: dist.Store, tap: Tap) -> None:
        super().__init__()
        self._inner, self._tap = inner, tap

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        if found := re.search(rb"127\.0\.0\.1:(\d{5})", data):
            self._tap.target = self._tap.target or int(found[1])  # this rank's own entry comes first in the table
            data = data.replace(b"127.0.0.1:%d" % self._tap.target, b"127.0.0.1:%d" % self._tap.port)
        self._inner.set(key, data)

    def get(self, key: str) -> bytes:
        return self._inner.get(key)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(key, amount)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self._inner.wait(keys, *([] if timeout is None else [timeout]))

    def check(self, keys: list[str]) -> bool:
        return self._inner.check(keys)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return self._inner.compare_set(key, expected, desired)


def send_pattern(me: Me) -> None:
    tap = Tap()
    store = TappedStore(dist.TCPStore("127.0.0.1", me.port, is_master=False), tap)
    dist.init_process_group("atoll", store=store, rank=me.rank, world_size=me.size)
    tensor = torch.zeros(len(PATTERN) * 5000, dtype=torch.uint8)
    if me.rank == 0:
        tensor = torch.frombuffer(bytearray(PATTERN * 5000), dtype=torch.uint8)
    dist.broadcast(tensor, 0)
    assert tensor.numpy().tobytes() == PATTERN * 5000
    dist.barrier()
    me.tell("passed", (len(tap.passed), PATTERN in tap.passed))
    dist.destroy_process_group()


@pytest.mark.parametrize("tls", ["", "1"])
def test_a_relay_on_the_way_reads_no_tensor(tmp_path: Path, key: str, tls: str) -> None:
    environment = {"ATOLL_KEY_FILE": key, "ATOLL_TLS": tls, "ATOLL_TRANSPORT": "tcp", "ATOLL_ADDRESS": "127.0.0.1"}
    with Job(tmp_path, send_pattern, "AB", environment=environment) as job:
        passed = [event.details for event in job.wait_for("passed").values()]
        job.wait_for("end")
        job.check_ends()
    assert sum(count for count, _ in passed) > len(PATTERN) * 5000, "the tensor took the relay"
    assert any(readable for _, readable in passed) == (not tls)


def join_alone(me: Me) -> None:
    me.join(5.0)


def test_tls_needs_a_key_file(tmp_path: Path) -> None:
    with Job(tmp_path, join_alone, "A", environment={"ATOLL_TLS": "1"}) as job:
        kind, text = job.wait_for("error")[0].details
        assert kind == "ValueError"
        assert "ATOLL_TLS=1 needs ATOLL_KEY_FILE" in text
        job.check_ends(code=1)


@pytest.mark.parametrize(("variable", "value"), [("ATOLL_TRANSPORT", "ucx"), ("ATOLL_BRIDGE", "relay")])
def test_what_cannot_be_encrypted_is_refused(tmp_path: Path, key: str, variable: str, value: str) -> None:
    with Job(tmp_path, join_alone, "A", environment={"ATOLL_TLS": "1", "ATOLL_KEY_FILE": key, variable: value}) as job:
        _, text = job.wait_for("error")[0].details
        assert f"{variable}={value} with ATOLL_TLS=1" in text
        job.check_ends(code=1)


def test_a_rank_without_tls_is_named(tmp_path: Path, key: str) -> None:
    own = {1: {"ATOLL_TLS": "1"}}
    with Job(tmp_path, join_alone, "AAA", environment={"ATOLL_KEY_FILE": key}, own=own) as job:
        for event in job.wait_for("error").values():
            assert "rank 1 disagree about ATOLL_TLS" in event.details[1]
        job.check_ends(code=1)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path, key: str) -> None:
    Path(key).chmod(0o640)
    with Job(tmp_path, join_alone, "A", environment={"ATOLL_KEY_FILE": key}) as job:
        _, text = job.wait_for("error")[0].details
        assert f"chmod 600 {key}" in text
        job.check_ends(code=1)
