# SPDX-License-Identifier: Apache-2.0
"""A link that fails at a chosen point, between two bytes of one direction of a connection."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

UP, DOWN = 0, 1  # towards the server, and back
LIMIT = 60
_PIECE = 1 << 16
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class Pair:
    """One connection, in two parts."""

    client: socket.socket
    server: socket.socket
    carried: tuple[bytearray, bytearray] = field(default_factory=lambda: (bytearray(), bytearray()))
    pumps: int = 2
    is_cut: bool = False

    def end(self) -> None:
        """Ends the connection as if the process had died."""
        self.is_cut = True
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        self.is_cut = True
        for each in (self.client, self.server):
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                each.shutdown(socket.SHUT_RD)  # wakes the reader, without informing the other end


Action = Callable[[Pair], None]


class FaultyLink:
    """Connections to `address` go on to `target`, which may change: the next one goes there."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.fired = threading.Event()
        self.pairs: list[Pair] = []  # all that there ever were
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._fault: tuple[int, int, Action] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def fault(self, way: int, after: int, action: Action) -> None:
        """Sets what happens, once, to the first connection that has carried `after` bytes in that direction."""
        self.fired.clear()
        with self._lock:
            self._fault = (way, after, action)

    def stall(self) -> None:
        """Stops carrying bytes, without ending any connection."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Resets every connection."""
        with self._lock:
            pairs = list(self.pairs)
        for pair in pairs:
            if pair.pumps:
                pair.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.resume()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)), timeout=LIMIT)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = Pair(client, server)
            with self._lock:
                self.pairs.append(pair)
            for way in (UP, DOWN):
                threading.Thread(target=self._pump, args=(pair, way), daemon=True).start()

    def _pump(self, pair: Pair, way: int) -> None:
        source, sink = (pair.client, pair.server) if way == UP else (pair.server, pair.client)
        carried = pair.carried[way]
        with suppress(OSError):
            while not pair.is_cut and (data := source.recv(_PIECE)):
                self._flows.wait()
                count, action = self._before(way, len(carried), len(data))
                sink.sendall(data[:count])
                carried += data[:count]
                if action is not None:
                    action(pair)
                    self.fired.set()
                    self._flows.wait()
                if pair.is_cut:
                    break
                sink.sendall(data[count:])
                carried += data[count:]
        if not pair.is_cut:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        with self._lock:
            pair.pumps -= 1
            if not pair.pumps:
                pair.client.close()
                pair.server.close()

    def _before(self, way: int, carried: int, count: int) -> tuple[int, Action | None]:
        """Returns how many bytes still pass, and what happens then."""
        with self._lock:
            if self._fault is None or self._fault[0] != way or not carried <= self._fault[1] <= carried + count:
                return count, None
            _, after, action = self._fault
            self._fault = None
            return after - carried, action
