# SPDX-License-Identifier: Apache-2.0
"""Starting a group costs each rank a number of store round trips that grows with the logarithm of the number of
ranks."""

import contextlib
import selectors
import socket
import threading
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import torch
import torch.distributed as dist

from forking import PROCESSES, fork
from support import later


class CountingRelay:
    """Stands between ranks and the store and counts, for each rank, the answered requests that name Atoll's own keys.

    A request without an answer (TCPStore's set) costs no round trip and counts with the one that follows it."""

    def __init__(self, ranks: int, store_port: int) -> None:
        self.store_port = store_port
        self.counts = [0] * ranks
        self.selector = selectors.DefaultSelector()
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks)]
        self.ports = [listener.getsockname()[1] for listener in self.listeners]
        for rank, listener in enumerate(self.listeners):
            self.selector.register(listener, selectors.EVENT_READ, (None, rank, None))
        self.wake, self.stop = socket.socketpair()
        self.selector.register(self.wake, selectors.EVENT_READ, None)
        self.thread = threading.Thread(target=self.relay)
        self.thread.start()

    def relay(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    return
                other, rank, request = key.data
                source = key.fileobj
                assert isinstance(source, socket.socket)
                if other is None:
                    self.connect(source.accept()[0], rank)
                    continue
                data = b""
                with contextlib.suppress(OSError):
                    data = source.recv(1 << 20)
                if not data:
                    for end in (source, other):
                        with contextlib.suppress(KeyError, ValueError):
                            self.selector.unregister(end)
                        end.close()
                    continue
                self.note(rank, request, data, answer=source is request.store)
                with contextlib.suppress(OSError):
                    other.sendall(data)

    def connect(self, client: socket.socket, rank: int) -> None:
        store = socket.create_connection(("127.0.0.1", self.store_port))
        request = Request(store)
        self.selector.register(client, selectors.EVENT_READ, (store, rank, request))
        self.selector.register(store, selectors.EVENT_READ, (client, rank, request))

    def note(self, rank: int, request: "Request", data: bytes, answer: bool) -> None:
        if not answer:
            request.data += data
        elif request.data:
            self.counts[rank] += b"atoll/" in request.data
            request.data = b""

    def close(self) -> None:
        self.stop.send(b".")
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self.stop.close()


class Request:
    """The bytes that a client has sent on one connection since the last answer."""

    def __init__(self, store: socket.socket) -> None:
        self.store, self.data = store, b""


def start(rank: int, size: int, port: int, answers: Connection) -> None:
    import atoll

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)

    def reach(point: object) -> None:
        answers.send(point)
        answers.recv()

    dist.init_process_group("atoll", store=store, rank=rank, world_size=size)
    reach(atoll.links())
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size
    reach("reduced")
    group = dist.new_group(list(range(0, size, 2)))
    reach("made a group")
    if rank % 2 == 0:
        dist.destroy_process_group(group)
    dist.destroy_process_group()


def on_all(size: int) -> list[tuple[list[Any], list[int]]]:
    """Returns, for each point of `start`, the ranks' values there and the round trips of each since the previous
    point."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    relay = CountingRelay(size, store.port)
    connections, processes = [], []
    try:
        for rank in range(size):
            mine, theirs = PROCESSES.Pipe()
            processes.append(fork(start, rank, size, relay.ports[rank], theirs))
            theirs.close()
            connections.append(mine)
        points, before = [], [0] * size
        for _ in range(3):
            said = []
            for connection in connections:
                assert wait([connection], 60), "a rank does not answer"
                said.append(connection.recv())
            counts = list(relay.counts)
            points.append((said, [after - earlier for after, earlier in zip(counts, before, strict=True)]))
            before = counts
            for connection in connections:
                connection.send("go on")
        for process in processes:
            process.join(20)
        assert [process.exitcode for process in processes] == [0] * size
        return points
    finally:
        for process in processes:
            process.kill()
            process.join()
        relay.close()


# Proves S-10.
@pytest.mark.parametrize("size", [1, 2, 3, 8, *map(later, (4, 13, 16))])
def test_store_round_trips(size: int) -> None:
    levels = (size - 1).bit_length()  # log2, rounded up
    (links, joining), (_, reducing), (_, grouping) = on_all(size)
    # TCPStore needs two round trips for a get: it waits for the key, then requests the value.
    assert all(1 <= count <= 2 * levels + 3 for count in joining), joining
    assert all(count <= 2 * levels + 2 for count in grouping), grouping  # what the job agreed on is known by then
    assert reducing == [0] * size
    assert links == [{}] * size, "links open with the first use"
