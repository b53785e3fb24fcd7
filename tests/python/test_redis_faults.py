# SPDX-License-Identifier: Apache-2.0
"""A Redis server that dies, stalls, restarts with or without its keys, or rejects the client: an error in time that
names the server, or no effect at all."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import atoll
from redis_server import RedisServer, make_certificates

KEEPS = ["--appendonly", "yes", "--appendfsync", "always"]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RedisServer]]:
    started: list[RedisServer] = []
    yield started
    for server in started:
        server.stop()


def start(servers: list[RedisServer], folder: Path, *options: str, certificates: Path | None = None) -> RedisServer:
    servers.append(RedisServer(folder, list(options), certificates))
    return servers[-1]


def store_of(url: str, seconds: float = 10) -> dist.Store:
    return atoll.RedisStore(url, timedelta(seconds=seconds))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_a_server_that_dies_during_a_get(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    store = store_of(server.url("job=j"), 1.5)
    with ThreadPoolExecutor(1) as pool:
        begin = time.monotonic()
        waiting = pool.submit(store.get, "never")
        server.kill()
        with pytest.raises(dist.DistStoreError, match=rf"Redis server at redis://{server.place}/0.*refused"):
            waiting.result(20)
        assert 0.9 < time.monotonic() - begin < 10


def test_a_server_that_stalls(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    store = store_of(server.url("job=j"), 10)
    store.set_timeout(timedelta(seconds=0.5))
    server.signal(signal.SIGSTOP)
    for call in (lambda: store.set("key", "value"), lambda: store.get("key"), lambda: store.check(["key"])):
        begin = time.monotonic()
        with pytest.raises(dist.DistStoreError, match="does not answer"):
            call()
        assert time.monotonic() - begin < 8
    server.signal(signal.SIGCONT)
    store.set_timeout(timedelta(seconds=10))
    assert store.add("sum", 1) == 1


def test_a_server_that_comes_back_with_its_keys(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path, *KEEPS)
    store, other = (store_of(server.url("job=j"), 20) for _ in range(2))
    store.set("key", "value")
    assert store.add("sum", 1) == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.get, "late")
        server.kill()
        server.start()
        assert store.get("key") == b"value"
        assert store.add("sum", 1) == 2
        store.set("late", "here")
        assert waiting.result(20) == b"here"


def test_a_server_that_comes_back_without_its_keys(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    store = store_of(server.url("job=train"), 20)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "never")
        server.kill()
        server.start()
        with pytest.raises(dist.DistStoreError, match=r'has lost the keys of job "train".*appendonly'):
            waiting.result(20)


# Proves S-7.
def test_a_server_that_comes_back_with_old_keys(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    store = store_of(server.url("job=train"), 20)
    store.set("key", "value")
    server.ask("SAVE")
    store.set("key", "newer")
    server.kill()
    server.start()
    with pytest.raises(dist.DistStoreError, match='older keys of job "train"'):
        store.get("key")


def test_passwords(servers: list[RedisServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(servers, tmp_path, "--requirepass", "open sesame")
    with pytest.raises(dist.DistNetworkError, match=r"requires a password.*ATOLL_REDIS_PASSWORD_FILE"):
        store_of(server.url("job=j"))
    with pytest.raises(dist.DistNetworkError, match="does not accept the password") as caught:
        store_of(server.url("job=j", login=":wrong-one@"))
    assert "wrong-one" not in str(caught.value)
    store = store_of(server.url("job=j", login=":open%20sesame@"))
    store.set("key", "value")
    file = tmp_path / "password"
    file.touch(mode=0o600)
    file.write_text("open sesame\n")
    monkeypatch.setenv("ATOLL_REDIS_PASSWORD_FILE", str(file))
    assert store_of(server.url("job=j")).get("key") == b"value"
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        store_of(server.url("job=j"))


def test_tls(servers: list[RedisServer], tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(servers, tmp_path, "--tls-auth-clients", "no", certificates=certificates)
    store = store_of(server.url(f"job=j&ca={certificates}/ca.pem"))
    store.set("key", "x" * 300_000)
    assert len(store.clone().get("key")) == 300_000
    monkeypatch.setenv("ATOLL_REDIS_CA", f"{certificates}/ca.pem")
    assert store_of(server.url("job=j")).check(["key"])
    for other in (f"&ca={certificates}/another.pem", f"&ca={certificates}/server.key"):
        with pytest.raises((dist.DistNetworkError, ValueError), match=r"ca=|not a list of certificates"):
            store_of(server.url(f"job=j{other}"))


def test_tls_with_a_certificate_of_the_client(servers: list[RedisServer], tmp_path: Path, certificates: Path) -> None:
    server = start(servers, tmp_path, certificates=certificates)
    with pytest.raises(dist.DistNetworkError, match="cert= and key="):
        store_of(server.url(f"job=j&ca={certificates}/ca.pem"))
    mine = f"&cert={certificates}/client.pem&key={certificates}/client.key"
    store_of(server.url(f"job=j&ca={certificates}/ca.pem{mine}")).set("key", "value")
    with pytest.raises(ValueError, match="also needs ca="):
        store_of(server.url(f"job=j{mine}"))


def test_one_side_without_tls(servers: list[RedisServer], tmp_path: Path, certificates: Path) -> None:
    for name in ("plain", "secure"):
        (tmp_path / name).mkdir()
    plain = start(servers, tmp_path / "plain")
    with pytest.raises(dist.DistError, match="redis://"):
        store_of(f"rediss://{plain.place}/?job=j&ca={certificates}/ca.pem", 1)
    secure = start(servers, tmp_path / "secure", certificates=certificates)
    with pytest.raises(dist.DistError, match="rediss://"):
        store_of(f"redis://{secure.place}/?job=j", 1)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:1", "name this one"),
        ("redis://127.0.0.1:1/?job=a%20b", "job's name"),
        ("redis://127.0.0.1:1/x?job=j", 'database "x"'),
        ("http://127.0.0.1:1/?job=j", "does not begin with redis://"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        store_of(url)


def test_a_database_that_does_not_exist(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path, "--databases", "2")
    with pytest.raises(ValueError, match="no database 7"):
        store_of(f"redis://{server.place}/7?job=j")


def test_a_server_that_takes_no_more(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    store = store_of(server.url("job=j"))
    server.ask("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(dist.DistStoreError, match=r'set of "key".*OOM'):
        store.set("key", "value")
    server.ask("CONFIG", "SET", "maxmemory", "0")
    store.set("key", "value")


def test_a_server_that_is_not_redis() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answered = pool.submit(answer)
        with pytest.raises(dist.DistNetworkError, match="invalid Redis reply"):
            store_of(f"redis://127.0.0.1:{listener.getsockname()[1]}/?job=j", 5)
        answered.result(10)


def test_a_forked_process_makes_its_own(servers: list[RedisServer], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    store = store_of(server.url("job=j"))
    child = os.fork()
    if child == 0:
        try:
            store.get("key")
        except ValueError as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.set("key", "value")
