# SPDX-License-Identifier: Apache-2.0
"""Requirements on every store of torch.distributed, for TCPStore, HashStore and RedisStore, also with a prefix."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

import atoll
from redis_server import RedisServer

SOON = timedelta(milliseconds=50)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"))
    yield running
    running.stop()


def _tcp() -> dist.Store:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(params=["tcp", "hash", "redis", "redis under a prefix"])
def store(request: pytest.FixtureRequest, server: RedisServer) -> dist.Store:
    made = {"tcp": _tcp, "hash": dist.HashStore}
    if request.param in made:
        return made[request.param]()
    found = atoll.RedisStore(server.url(f"job={request.node.name.partition('[')[0]}"))
    return found if request.param == "redis" else dist.PrefixStore("before", found)


def test_a_value_is_what_was_set(store: dist.Store) -> None:
    store.set("key", "value")
    assert store.get("key") == b"value"
    store.set("key", b"\0\r\n\xff")
    assert store.get("key") == b"\0\r\n\xff"
    store.set("", "of the empty key")
    assert store.get("") == b"of the empty key"
    store.set("large", "x" * 3_000_000)
    assert len(store.get("large")) == 3_000_000


def test_sums(store: dist.Store) -> None:
    assert store.add("sum", 3) == 3
    assert store.add("sum", -5) == -2
    assert store.get("sum") == b"-2"
    assert store.add("sum", 2**62) == 2**62 - 2


def test_a_sum_of_many_threads(store: dist.Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda _: store.add("sum", 1), range(100)))
    assert sorted(seen) == list(range(1, 101))


def test_a_sum_over_a_value_that_is_not_a_number(store: dist.Store) -> None:
    store.set("key", "words")
    if isinstance(store, dist.TCPStore):
        pytest.skip("TCPStore's server ends the connection")
    with pytest.raises((RuntimeError, ValueError)):
        store.add("key", 1)


def test_compare_and_set(store: dist.Store) -> None:
    assert store.compare_set("key", "wrong", "first") == b"wrong"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "wrong", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"


def test_one_of_many_wins(store: dist.Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        seen = set(pool.map(lambda number: store.compare_set("winner", "", str(number)), range(40)))
    assert len(seen) == 1


def test_keys_are_counted_checked_and_removed(store: dist.Store) -> None:
    before = store.num_keys()
    store.set("a", "1")
    store.set("b", "2")
    assert store.num_keys() == before + 2
    assert store.check(["a", "b"])
    assert not store.check(["a", "c"])
    assert store.delete_key("a")
    assert not store.delete_key("a")
    assert not store.check(["a"])


def test_waiting_for_keys(store: dist.Store) -> None:
    store.set("a", "1")
    other = store.clone()  # a TCPStore is blocked while one of its calls waits
    timer = threading.Timer(0.1, lambda: (other.set("b", "2"), other.set("c", "3")))
    timer.start()
    store.wait(["a", "b", "c"], timedelta(seconds=20))
    assert store.get("c") == b"3"
    timer.join()


def test_get_waits(store: dist.Store) -> None:
    other = store.clone()
    timer = threading.Timer(0.1, lambda: other.set("late", "value"))
    timer.start()
    assert store.get("late") == b"value"
    timer.join()


def test_a_key_that_does_not_come(store: dist.Store) -> None:
    with pytest.raises(dist.DistStoreError):
        store.wait(["absent"], SOON)
    store.set_timeout(SOON)
    assert store.timeout == SOON
    with pytest.raises(dist.DistStoreError):
        store.get("absent")
    store.set_timeout(timedelta(seconds=20))
    store.set("absent", "there")
    assert store.get("absent") == b"there"


def test_a_wait_delays_no_other_call(store: dist.Store) -> None:
    """A wait delays neither other Python threads nor a clone."""
    clone = store.clone()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(clone.wait, ["go"], timedelta(seconds=20))
        for number in range(20):
            store.set(f"key{number}", "value")
        assert not waiting.done()
        store.set("go", "")
        waiting.result(20)


def test_several_at_once(store: dist.Store) -> None:
    store.multi_set(["a", "b", "c"], ["1", "", "3"])
    assert store.multi_get(["c", "a", "b"]) == [b"3", b"1", b""]
    assert store.multi_get([]) == []
    store.append("log", "one ")
    store.append("log", "two")
    assert store.get("log") == b"one two"
    assert store.has_extended_api()


def test_clones_see_the_same(store: dist.Store) -> None:
    clone = store.clone()
    store.set("key", "value")
    assert clone.get("key") == b"value"
    assert clone.add("sum", 1) == 1
    assert store.add("sum", 1) == 2


def test_queues(store: dist.Store) -> None:
    assert store.queue_len("queue") == 0
    for value in ("a", "b", "c"):
        store.queue_push("queue", value)
    assert store.queue_len("queue") == 3
    assert [store.queue_pop("queue") for _ in range(3)] == [b"a", b"b", b"c"]
    with pytest.raises(dist.QueueEmptyError):
        store.queue_pop("queue", block=False)
    other = store.clone()
    timer = threading.Timer(0.1, lambda: other.queue_push("queue", "late"))
    timer.start()
    assert store.queue_pop("queue") == b"late"
    timer.join()
    store.set_timeout(SOON)
    with pytest.raises(dist.DistStoreError):
        store.queue_pop("queue")


def test_prefixes_keep_apart(store: dist.Store) -> None:
    one, two = dist.PrefixStore("one", store), dist.PrefixStore("two", store)
    one.set("key", "1")
    two.set("key", "2")
    assert (one.get("key"), two.get("key")) == (b"1", b"2")


# Proves S-9.
def test_jobs_keep_apart(server: RedisServer) -> None:
    one, two = (atoll.RedisStore(server.url(f"job=apart{number}")) for number in (1, 2))
    one.set("key", "1")
    assert not two.check(["key"])
    assert (one.url, one.job) == (f"redis://{server.place}/0", "apart1")
