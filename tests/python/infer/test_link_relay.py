# SPDX-License-Identifier: Apache-2.0
"""The relay in user space: bytes arrive as they were sent, at the rates of the trace and without further delay."""

import os
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from typer.testing import CliRunner

from atoll.cli import app
from atoll.infer.planning.profile_command import host_and_port
from atoll.infer.planning.relay import Relay
from atoll.infer.planning.trace import Trace

LIMIT = 20  # the limit in seconds of any wait here
BUSY = 5.0  # seconds that a busy machine may add to any time here


@contextmanager
def service(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """Serves each connection in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.settimeout(LIMIT)
                threading.Thread(target=run, args=(connection,), daemon=True).start()

        def run(connection: socket.socket) -> None:
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


def echo(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def swallow(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass
    connection.sendall(b"x")


def connect(relay: Relay) -> socket.socket:
    connection = socket.create_connection(relay.address(), timeout=LIMIT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def seconds_of_upload(relay: Relay, count: int) -> float:
    with connect(relay) as connection:
        begin = time.monotonic()
        connection.sendall(b"a" * count)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"x"
        return time.monotonic() - begin


def test_bytes_arrive_as_they_were_sent() -> None:
    sent = bytes(range(256)) * 4000
    with service(echo) as target, Relay(target, Trace(0.1, [2e7])) as relay, connect(relay) as connection:
        threading.Thread(target=lambda: (connection.sendall(sent), connection.shutdown(socket.SHUT_WR))).start()
        received = b""
        while data := connection.recv(1 << 16):
            received += data
        assert received == sent
        assert relay.carried() == (len(sent), len(sent))


@pytest.mark.parametrize("rate", [1e6, 1e7])
def test_rates_are_held(rate: float) -> None:
    with service(swallow) as target, Relay(target, Trace(0.1, [rate])) as relay:
        seconds = seconds_of_upload(relay, int(rate))
        assert 0.98 <= seconds < 1 + BUSY


def test_rates_change_with_the_trace() -> None:
    """Half a second of 2 MB/s alternates with half a second of nothing, so 2 MB need the first and the third half."""
    with service(swallow) as target, Relay(target, Trace(0.5, [2e6, 0])) as relay:
        assert 0.98 * 1.5 <= seconds_of_upload(relay, 2_000_000) < 1.5 + BUSY


def test_both_ways_of_a_shared_medium_take_turns() -> None:
    with service(echo) as target, Relay(target, Trace(0.1, [4e6]), half_duplex=True) as relay, connect(relay) as client:
        begin = time.monotonic()
        threading.Thread(target=client.sendall, args=(b"a" * 1_000_000,)).start()
        left = 1_000_000
        while left:
            left -= len(client.recv(1 << 16))
        assert 0.98 * 0.5 <= time.monotonic() - begin < 0.5 + BUSY


def round_trip(address: tuple[str, int]) -> float:
    """Returns the median of some round trips."""
    with socket.create_connection(address, timeout=LIMIT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(200):
            begin = time.monotonic()
            connection.sendall(b"a" * 100)
            assert connection.recv(100)
            times.append(time.monotonic() - begin)
        return statistics.median(times)


def test_latency_is_added_each_way() -> None:
    with service(echo) as target:
        with Relay(target, latency=0.005) as relay:
            late = round_trip(relay.address())
        assert 0.01 <= late < BUSY


@pytest.mark.verify
def test_rates_are_held_closely_and_little_is_added() -> None:
    """Judges the fastest of several tries, which other processes have disturbed least."""
    for rate, slower in ((1e5, 0.02), (1e6, 0.02), (1e7, 0.02), (5e7, 0.05), (1e9 / 8, 0.1)):
        with service(swallow) as target, Relay(target, Trace(0.1, [rate])) as relay:
            times = [seconds_of_upload(relay, int(rate)) for _ in range(5)]
            assert 0.98 <= min(times) <= 1 + slower, times
    with service(echo) as target, Relay(target, Trace(0.1, [1e9 / 8])) as relay:
        added = [round_trip(relay.address()) - round_trip(target) for _ in range(5)]
        assert min(added) < 2 * 0.3e-3, added


def test_a_target_that_is_gone_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        target = closed.getsockname()
    with Relay(target) as relay, connect(relay) as connection:
        assert connection.recv(1) == b""


def test_a_target_that_does_not_answer_stalls_nobody_else() -> None:
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        Relay(listener.getsockname()) as relay,
        connect(relay) as first,
        ExitStack() as kept,
    ):
        served = kept.enter_context(listener.accept()[0])
        served.settimeout(LIMIT)
        status = 0
        while status == 0:  # until the system queues no more connections for the target, and answers none
            waiting = kept.enter_context(socket.socket())
            waiting.settimeout(0.2)
            status = waiting.connect_ex(listener.getsockname())
        with connect(relay) as second:
            for _ in range(20):
                first.sendall(b"ping")
                assert served.recv(4) == b"ping"
                served.sendall(b"pong")
                assert first.recv(4) == b"pong"
            second.setblocking(False)
            with pytest.raises(BlockingIOError):  # it still waits, and is not refused
                second.recv(1)


def test_a_target_that_is_not_known_is_named() -> None:
    name = 70 * "a"  # a label of a name cannot be so long, so no name server is queried
    with pytest.raises(ValueError, match=f"the relay's target {name}:80 cannot be resolved"):
        Relay((name, 80))


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Relay(("127.0.0.1", 1), listen=("127.0.0.1", port))


def test_addresses() -> None:
    assert host_and_port("localhost:80") == ("localhost", 80)
    assert host_and_port("[::1]:0") == ("::1", 0)
    for text in ("80", ":80", "a:b", "a:99999", ""):
        with pytest.raises(ValueError, match="give HOST:PORT"):
            host_and_port(text)


def test_the_command_wants_something_to_do() -> None:
    environment = {"COLUMNS": "200", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, ["profile", "link", "--to", "127.0.0.1:1"], env=environment)
    assert result.exit_code == 2
    assert "give --replay FILE, --record FILE or both" in " ".join(result.output.split())


def test_a_message_that_fills_a_piece_gives_the_next_one_no_credit() -> None:
    """The first message ends at the end of a piece, and nothing waits after it."""
    with service(swallow) as target, Relay(target, Trace(0.1, [1e6])) as relay, connect(relay) as connection:
        connection.sendall(b"a" * 1448)
        limit = time.monotonic() + LIMIT
        while relay.carried()[0] < 1448:
            assert time.monotonic() < limit
            time.sleep(0.01)
        time.sleep(0.15)
        begin = time.monotonic()
        connection.sendall(b"a" * 100_000)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"x"
        assert time.monotonic() - begin >= 0.098


def test_descriptors_that_select_cannot_watch() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"a process may have {hard} descriptors here, 2048 are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with service(echo) as target, Relay(target, Trace(0.1, [2e7])) as relay, connect(relay) as connection:
            for _ in range(3):
                connection.sendall(b"a" * 1000)
                left = 1000
                while left:
                    received = connection.recv(left)
                    assert received
                    left -= len(received)
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_receiver_that_takes_nothing_holds_up_its_sender() -> None:
    """The bytes that wait for it are limited, also if the path has a rate."""
    over = threading.Event()

    def take_nothing(_: socket.socket) -> None:
        over.wait(LIMIT)

    with service(take_nothing) as target, Relay(target, Trace(0.1, [1e9])) as relay:
        with connect(relay) as connection:
            connection.settimeout(3)
            with pytest.raises(TimeoutError):
                connection.sendall(bytes(96 << 20))
        over.set()
