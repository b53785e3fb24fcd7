# SPDX-License-Identifier: Apache-2.0
"""Servers that will never answer are reported at once, instead of silently computing without them."""

import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from atoll.infer import RefusedError, Session
from infer.split_cases import READY_S
from launching import eventually
from serving import Serve

NEVER = 600.0  # seconds that no test here waits


@torch.library.custom_op("atoll_test::unlisted", mutates_args=())
def unlisted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


unlisted.register_fake(lambda x: torch.empty_like(x))


class Unlisted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unlisted(x) * 2


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "other.key"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[Serve]:
    with Serve(tmp_path, "--cache-size", "4K") as server:
        yield server


@pytest.fixture
def web_server() -> Iterator[str]:
    """The address of a server that speaks another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    with listening.accept()[0] as connection:
                        connection.recv(1)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def check(make: Callable[..., Session], net: nn.Module, x: torch.Tensor, text: str) -> None:
    """Checks each way in which a refusal is reported."""
    with make(policy="offload", hedge="never") as session:
        begin = time.monotonic()
        with pytest.raises(RefusedError, match=text):
            session.wait_until_ready(NEVER)
        assert time.monotonic() - begin < READY_S
        with pytest.raises(RefusedError, match=text):
            session(x)
        with pytest.raises(RefusedError, match=text):
            session.submit(x).result(READY_S)
    with make() as session:
        eventually(lambda: bool(session.report()["link"]["refusal"]), "it is refused")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                torch.testing.assert_close(session(x), net(x).detach())
        (warning,) = caught
        assert text in str(warning.message)
        assert "this machine computes everything alone" in str(warning.message)
        assert warning.filename == __file__, "the line that made the call"


def session_of(net: nn.Module, x: torch.Tensor, address: str, key_file: Path) -> Callable[..., Session]:
    def make(**options: Any) -> Session:
        return Session(net, (x,), server=address, key_file=key_file, profile_seconds=0.0, **options)

    return make


def test_a_model_that_is_too_large(small_server: Serve, net: nn.Module) -> None:
    x = torch.rand(1, 64)
    check(session_of(net, x, small_server.address, small_server.key_file), net, x, "--cache-size")


# Proves I-4.
def test_an_operator_that_is_not_listed(small_server: Serve) -> None:
    x = torch.rand(1, 8)
    net = Unlisted().eval()
    check(session_of(net, x, small_server.address, small_server.key_file), net, x, "not on the server's list")


def test_another_key(small_server: Serve, net: nn.Module, key_file: Path) -> None:
    x = torch.rand(1, 64)
    check(session_of(net, x, small_server.address, key_file), net, x, "copy of the server's key file")


def test_another_protocol(web_server: str, net: nn.Module, key_file: Path) -> None:
    x = torch.rand(1, 64)
    check(session_of(net, x, web_server, key_file), net, x, "is it the address of an atoll serve")


def test_an_attached_module_that_insists_raises(small_server: Serve, net: nn.Module) -> None:
    x = torch.rand(1, 64)
    session = atoll.infer.attach(
        net, (x,), small_server.address, key_file=small_server.key_file, hedge="never", profile_seconds=0.0
    )
    with pytest.raises(RefusedError, match="--cache-size"):
        session.wait_until_ready(NEVER)
    with pytest.raises(RefusedError, match="--cache-size"):
        net(x)
    atoll.infer.detach(net)


def test_a_server_that_is_not_reachable_yet_is_not_a_refusal(net: nn.Module, key_file: Path) -> None:
    x = torch.rand(1, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with session_of(net, x, "127.0.0.1:1", key_file)(hedge="never") as session:
            assert not session.wait_until_ready(0.2)
            torch.testing.assert_close(session(x), net(x).detach())
