# SPDX-License-Identifier: Apache-2.0
"""A real server whose link is cut, stalls or changes, or that dies: every answer is right and in time, and the
session finds its server again."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import atoll
from atoll.infer.planning.profile_command import host_and_port
from atoll.infer.planning.relay import Relay
from atoll.infer.planning.trace import Trace
from faulty_link import DOWN, UP, Action, FaultyLink, Pair
from serving import Serve
from split_cases import LIMIT, READY_S, bundle, check, session_of, until_server

WAYS = {"up": UP, "down": DOWN}
SHARES = [0.0, 0.15, 0.3, 0.5, 0.7, 0.9]  # shares of the bytes that a connection carries for some inferences
verify = pytest.mark.verify


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("serve")) as server:
        yield server
        assert server.stop() == 0, server.output


def meet(link: FaultyLink, session: atoll.infer.Session, way: int, share: float, action: Action) -> None:
    """The next connection suffers `action` after that share of the bytes that an undisturbed one carries; answers
    must not wait for it."""
    until_server(session)
    for number in range(3):
        check(session, number)
    after = int(share * len(link.pairs[-1].carried[way]))
    link.fault(way, after, action)
    link.cut()
    begin = time.monotonic()
    number = 0
    while not link.fired.is_set():
        check(session, number)
        assert time.monotonic() - begin < READY_S, session.report()
        number += 1
    for number in range(3):
        check(session, number)


@pytest.mark.parametrize("how", ["end", "reset"])
@pytest.mark.parametrize(
    ("way", "share"),
    [pytest.param(way, share, marks=[] if share == 0.7 else [verify]) for way in WAYS for share in SHARES],
)
def test_a_link_that_is_cut_anywhere(server: Serve, way: str, share: float, how: str) -> None:
    with FaultyLink(server.address) as link, session_of(link.address, server.key_file) as session:
        meet(link, session, WAYS[way], share, Pair.end if how == "end" else Pair.reset)
        until_server(session)


@pytest.mark.parametrize(
    ("way", "share"),
    [
        pytest.param(way, share, marks=[] if share == 0.7 and way == "up" else [verify])
        for way in WAYS
        for share in SHARES
    ],
)
def test_a_link_that_stalls_anywhere(server: Serve, way: str, share: float) -> None:
    with FaultyLink(server.address) as link, session_of(link.address, server.key_file, silence=1.0) as session:
        meet(link, session, WAYS[way], share, lambda _: link.stall())
        link.resume()
        until_server(session)


def test_the_guard_does_not_wait_for_the_end_of_a_stall(server: Serve) -> None:
    """The link is not given up for ten minutes, so only the guard can give an answer earlier."""
    with (
        FaultyLink(server.address) as link,
        session_of(link.address, server.key_file, silence=600.0, deadline=0.5) as session,
    ):
        for _ in range(20):
            link.resume()
            until_server(session)
            link.stall()
            last = check(session)
            assert last.origin == "local"
            if last.guard_used:
                break  # otherwise the previous inference had not ended, and the server was not used
        assert last.guard_used, session.report()
        for number in range(20):
            check(session, number)
        link.resume()
        until_server(session)
        assert session.report()["link"]["connections"] == 1


def test_8_then_0_then_200_mbit(server: Serve) -> None:
    trace = Trace(0.5, [1e6, 0.0, 25e6])  # bytes per second
    with Relay(host_and_port(server.address), trace) as relay:
        host, port = relay.address()
        with session_of(f"{host}:{port}", server.key_file, silence=600.0, deadline=0.4) as session:
            until_server(session)
            begin = time.monotonic()
            number = 0
            while time.monotonic() - begin < 2 * trace.seconds:
                check(session, number)
                number += 1
            until_server(session)
            report = session.report()
            assert report["link"]["connections"] == 1
            assert report["origins"]["server"] > 1


@verify
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_is_killed_at_every_stage(tmp_path: Path, way: str) -> None:
    server = Serve(tmp_path)
    with FaultyLink(server.address) as link, session_of(link.address, server.key_file) as session:
        for share in SHARES:
            with server:
                meet(link, session, WAYS[way], share, killing(server))
                server.process.wait(LIMIT)
                for number in range(5):
                    assert check(session, number).origin == "local"
            server = Serve(tmp_path)  # on another port, while the old one is closed
            link.target = server.address
        with server:
            until_server(session)
            assert server.stop() == 0, server.output


def killing(server: Serve) -> Action:
    def kill(_: Pair) -> None:
        server.process.kill()

    return kill


@verify
@pytest.mark.parametrize("how", ["reset", "stall", "kill"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_faults_while_a_model_is_sent(tmp_path: Path, share: float, how: str) -> None:
    seed = 1 + int(100 * share)  # a model that the server does not have yet
    weights = sum(tensor.nbytes for tensor in bundle(seed).weights.values())
    with Serve(tmp_path) as server, FaultyLink(server.address) as link:
        actions: dict[str, Callable[[Pair], None]] = {
            "reset": Pair.reset, "stall": lambda _: link.stall(), "kill": killing(server)
        }  # fmt: skip
        link.fault(UP, int(share * weights), actions[how])
        with session_of(link.address, server.key_file, seed, silence=1.0) as session:
            begin = time.monotonic()
            while not link.fired.is_set():
                check(session, seed=seed)
                assert time.monotonic() - begin < READY_S, session.report()
            for number in range(20):
                origin = check(session, number, seed).origin
                assert origin == "local" or how == "reset"
            link.resume()
            if how != "kill":
                until_server(session, seed)
                return
            server.process.wait(LIMIT)
            with Serve(tmp_path) as again:
                link.target = again.address
                until_server(session, seed)
