# SPDX-License-Identifier: Apache-2.0
"""`atoll serve`: what it prints, and the errors of wrong calls."""

import contextlib
import inspect
import os
import re
import signal
import socket
import stat
import subprocess
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn

import atoll
from atoll import _C
from atoll.infer import serving
from atoll.infer.planning import profile_command
from forking import run_module
from launching import eventually
from serving import Serve
from split_cases import READY_S
from support import later


def refused(address: str, key: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs an `atoll serve` that ends by itself."""
    return run_module("atoll.cli", "serve", "--listen", address, "--key-file", key, *arguments, COLUMNS="250")


@pytest.mark.parametrize("number", [signal.SIGTERM, later(signal.SIGINT)])
def test_listens_until_a_signal(tmp_path: Path, number: int) -> None:
    with Serve(tmp_path, "--metrics", "0") as server:
        assert server.address.startswith("127.0.0.1:")
        assert stat.S_IMODE(server.key_file.stat().st_mode) == 0o600
        assert re.search("^made a new key: .*atoll.key", server.output, re.MULTILINE)
        while not (found := re.search(r"metrics on (\S+)", server.output)):
            assert server.process.poll() is None
        page = urllib.request.urlopen(found[1], timeout=30).read().decode()
        assert "atoll_serve_inferences_total 0.0" in page
        assert server.stop(number) == 0
        assert server.lines[-1] == "Atoll: served 0 inferences to 0 clients"


def test_a_key_that_is_there_is_kept(tmp_path: Path) -> None:
    with Serve(tmp_path) as server:
        server.stop()
    key = server.key_file.read_bytes()
    with Serve(tmp_path) as server:
        server.stop()
    assert server.key_file.read_bytes() == key
    assert "made a new key" not in server.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "4700"], "--listen 4700: give HOST:PORT"),
        (["--listen", "localhost:99999"], "give HOST:PORT"),
        (["--listen", "localhost:4\u00b2"], "give HOST:PORT"),
        (["--listen", "no.such.host.invalid:1"], "no.such.host.invalid"),
        (["--cache-size", "much"], "--cache-size 'much' is not a valid size"),
        (["--metrics", "70000"], "--metrics"),
        (["--drain", "inf"], "--drain"),
        (["--device", "cuda:7"], "cuda:7"),
        (["--cache", "/proc/models"], "/proc/models"),
    ],
)
def test_wrong_calls(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run_module(
        "atoll.cli", "serve", "--listen", "127.0.0.1:0", "--key-file", str(tmp_path / "key"), *arguments, COLUMNS="250"
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run_module(
            "atoll.cli", "serve", "--listen", f"127.0.0.1:{port}", "--key-file", str(tmp_path / "key"), COLUMNS="250"
        )
    assert done.returncode == 2
    assert str(port) in done.stderr


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef0123456789abcdef")
    key.chmod(0o644)
    done = refused("127.0.0.1:0", key)
    assert done.returncode == 2
    assert "chmod 600" in done.stderr


def test_a_key_file_that_cannot_be_made(tmp_path: Path) -> None:
    done = run_module(
        "atoll.cli", "serve", "--listen", "127.0.0.1:0", "--key-file", str(tmp_path / "nowhere" / "key"), COLUMNS="250"
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot be made" in done.stderr


def test_only_this_machine_reaches_it_unless_it_is_told(tmp_path: Path) -> None:
    """Connections from other machines come to another address than 127.0.0.1, for which 127.0.0.2 stands in."""
    assert inspect.signature(serving.serve).parameters["listen"].default.startswith("127.0.0.1:")
    assert inspect.signature(profile_command.link).parameters["listen"].default.startswith("127.0.0.1:")
    key = tmp_path / "key"
    _C.make_key_file(str(key))
    options = serving.options_of("127.0.0.1:0", key, cache_folder=str(tmp_path / "models"))
    del options["host"]
    server = _C.InferServer(options)
    host, port = profile_command.host_and_port(server.address)
    assert host == "127.0.0.1"
    socket.create_connection((host, port), timeout=60).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=60)


def test_a_models_process_ends_on_sigterm(tmp_path: Path) -> None:
    net, x = nn.Linear(4, 4).eval(), torch.ones(1, 4)
    with Serve(tmp_path) as server:
        with atoll.infer.Session(net, x, server.address, server.key_file, profile_seconds=0.0) as session:
            assert session.wait_until_ready(READY_S), session.report()
            (worker,) = workers_of(server.process.pid)
            os.kill(worker, signal.SIGTERM)
            eventually(lambda: worker not in workers_of(server.process.pid), "the worker has ended")
            assert torch.allclose(session(x), net(x))
        assert server.stop() == 0, server.output


def workers_of(server: int) -> list[int]:
    children: list[str] = []
    for path in Path(f"/proc/{server}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            children += path.read_text().split()
    return [int(pid) for pid in children]
