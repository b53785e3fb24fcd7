# SPDX-License-Identifier: Apache-2.0
"""A network path in user space: forwards TCP connections from one address to another, at the rates of a trace.

Each byte is due when the path has carried all bytes before it. A waiting sender loses nothing if the relay wakes up
late. Few bytes that are not yet due wait here, so that senders see the rate of the path and no queue."""

import errno
import math
import os
import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from atoll.infer.planning.trace import Carrier, Trace

UP, DOWN = 0, 1  # towards the target, and back
_PIECE_SECONDS = 0.001  # of the path at its current rate; pieces are forwarded whole
_MIN_PIECE, _MAX_PIECE = 1448, 1 << 16
_BACKLOG = 0.002  # seconds that a path may be ahead before its sender must wait
_CATCH_UP = 0.1  # seconds that the relay may make up for after waking up late while its sender waited
_SOCKET_BYTES = 1 << 17  # size of the system's queues
_MAX_WAITING = 1 << 20  # bytes that may wait here for a receiver, besides those in transit if the path has a rate
_MAX_WAIT = 0.5
_CONNECT_SECONDS = 5.0  # time limit for the target to accept
_SELECTABLE = 1024  # select() does not support descriptors from this number on


@dataclass
class Pipe:
    """One direction of one connection."""

    source: socket.socket
    sink: socket.socket
    way: int
    pieces: deque[tuple[float, memoryview]] = field(default_factory=deque)
    waiting: int = 0  # bytes
    has_more: bool = False  # the source had more after the last read
    ended: bool = False  # the source has ended
    finished: bool = False  # and its end was forwarded

    def is_due(self, now: float) -> bool:
        return bool(self.pieces) and self.pieces[0][0] <= now


@dataclass
class Opening:
    """A client whose connection to the target is being made while others are carried."""

    client: socket.socket
    addresses: deque[tuple[int, Any]]  # families and addresses of the target; the first one is tried
    until: float
    server: socket.socket | None = None

    def is_made(self) -> bool:
        """Returns whether the connection is made. Raises OSError if no address answers in time."""
        while True:
            family, address = self.addresses[0]
            if self.server is None:
                self.server = socket.socket(family, socket.SOCK_STREAM)
                self.server.setblocking(False)
            status = self.server.connect_ex(address)
            if status in (0, errno.EISCONN):
                return True
            is_late = time.monotonic() >= self.until
            if status in (errno.EINPROGRESS, errno.EALREADY) and not is_late:
                return False
            self.server.close()
            self.server = None
            self.addresses.popleft()
            if is_late or not self.addresses:
                raise OSError(status, os.strerror(status))

    def close(self) -> None:
        self.client.close()
        if self.server is not None:
            self.server.close()


class Relay:
    """Listens at once; forwards when run() is called, or as a context manager in its own thread. The trace starts with
    the first connection and repeats; if `trace` is None, bytes pass as fast as they can. `latency`, in seconds, is
    added in each direction. The target's name is resolved once; raises ValueError if it is unknown."""

    def __init__(
        self, target: tuple[str, int], trace: Trace | None = None, *, listen: tuple[str, int] = ("127.0.0.1", 0),
        latency: float = 0.0, half_duplex: bool = False,
    ) -> None:  # fmt: skip
        self._addresses, self._latency = _addresses(target), latency
        self._opening: list[Opening] = []
        self._carriers = _carriers(trace)
        self._wire_of = (UP, UP if half_duplex else DOWN)  # by direction; both share one if the medium is shared
        self._free_at = [0.0, 0.0]  # when each wire is free for the next byte
        self._pairs: list[tuple[Pipe, Pipe]] = []
        self._begin: float | None = None
        self._carried = [0, 0]
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        try:
            self._listener.bind(listen)
            self._listener.listen(64)
        except OSError as error:
            self._listener.close()
            raise ValueError(f"the relay cannot listen on {listen[0]}:{listen[1]}: {error.strerror}") from None
        self._listener.setblocking(False)
        self._wake, self._waker = socket.socketpair()

    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def carried(self) -> tuple[int, int]:
        """The bytes forwarded so far, towards the target and back."""
        return self._carried[UP], self._carried[DOWN]

    def __enter__(self) -> "Relay":
        self._thread = threading.Thread(target=self.run, name="atoll-relay", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends run() and all connections."""
        self._stopping.set()
        with suppress(OSError):
            self._waker.send(b"x")
        if self._thread is not None:
            self._thread.join()

    def run(self) -> None:
        """Forwards until stop()."""
        try:
            while not self._stopping.is_set():
                self._turn()
        finally:
            for pair in self._pairs:
                _close(pair)
            for opening in self._opening:
                opening.close()
            self._pairs, self._opening = [], []
            for each in (self._listener, self._wake, self._waker):
                each.close()

    def _turn(self) -> None:
        now = time.monotonic()
        readers: list[socket.socket] = [self._listener, self._wake]
        writers: list[socket.socket] = []
        until = now + _MAX_WAIT
        for pair in self._pairs:
            for pipe in pair:
                ready = self._ready_to_read(pipe, now)
                if ready <= now:
                    readers.append(pipe.source)
                until = min(until, ready if ready > now else until)
                if pipe.is_due(now):
                    writers.append(pipe.sink)
                elif pipe.pieces:
                    until = min(until, pipe.pieces[0][0])
        for opening in self._opening:
            writers += [opening.server] if opening.server is not None else []
            until = min(until, opening.until)
        readable = _readable(readers, writers, max(0.0, until - now))
        self._move(readable)
        if self._listener in readable:
            self._accept()
        self._open()

    def _move(self, readable: set[socket.socket]) -> None:
        ended = []
        for pair in self._pairs:
            try:
                for pipe in pair:
                    if pipe.source in readable:
                        self._read(pipe)
                    self._write(pipe)
            except OSError:
                ended.append(pair)
                continue
            if all(pipe.finished for pipe in pair):
                ended.append(pair)
        for pair in ended:
            _close(pair)
            self._pairs.remove(pair)

    def _ready_to_read(self, pipe: Pipe, now: float) -> float:
        is_full = pipe.waiting >= _MAX_WAITING and (self._carriers is None or pipe.is_due(now))
        if pipe.ended or is_full:
            return math.inf
        if self._carriers is not None:
            return self._free_at[self._wire_of[pipe.way]] - _BACKLOG
        return 0.0

    def _read(self, pipe: Pipe) -> None:
        now = time.monotonic()
        carrier = self._carriers[pipe.way] if self._carriers is not None else None
        begin = self._begin or 0.0
        most = _MAX_PIECE
        if carrier is not None:
            most = min(max(int(carrier.rate(now - begin) * _PIECE_SECONDS), _MIN_PIECE), _MAX_PIECE)
        try:
            data = pipe.source.recv(most)
        except BlockingIOError:
            return
        if not data:
            pipe.ended = True
            return
        due = now
        if carrier is not None:
            wire = self._wire_of[pipe.way]
            start = max(self._free_at[wire], now - _CATCH_UP if pipe.has_more else now)
            self._free_at[wire] = begin + carrier.end(start - begin, len(data))
            due = max(self._free_at[wire], now)
        pipe.pieces.append((due + self._latency, memoryview(data)))
        pipe.waiting += len(data)
        pipe.has_more = len(data) == most and _has_more(pipe.source)

    def _write(self, pipe: Pipe) -> None:
        while pipe.is_due(time.monotonic()):
            due, piece = pipe.pieces[0]
            try:
                sent = pipe.sink.send(piece)
            except BlockingIOError:
                return
            self._carried[pipe.way] += sent
            pipe.waiting -= sent
            if sent < len(piece):
                pipe.pieces[0] = (due, piece[sent:])
                return
            pipe.pieces.popleft()
        if pipe.ended and not pipe.pieces and not pipe.finished:
            pipe.finished = True
            with suppress(OSError):
                pipe.sink.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.01)  # until a descriptor is free; the listener stays readable
            return
        self._opening.append(Opening(client, deque(self._addresses), time.monotonic() + _CONNECT_SECONDS))

    def _open(self) -> None:
        """Starts forwarding for clients whose connections to the target have been made."""
        opening, self._opening = self._opening, []
        for each in opening:
            try:
                if each.is_made():
                    self._carry(each)
                else:
                    self._opening.append(each)
            except OSError:
                each.close()

    def _carry(self, opening: Opening) -> None:
        client, server = opening.client, opening.server
        assert server is not None
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        if self._begin is None:
            self._begin = time.monotonic()
        self._pairs.append((Pipe(client, server, UP), Pipe(server, client, DOWN)))


def _addresses(target: tuple[str, int]) -> list[tuple[int, Any]]:
    try:
        found = socket.getaddrinfo(*target, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"the relay's target {target[0]}:{target[1]} cannot be resolved: {error}") from None
    return [(int(family), address) for family, _, _, _, address in found]


def _carriers(trace: Trace | None) -> tuple[Carrier, Carrier] | None:
    if trace is None:
        return None
    return Carrier(trace.bin_seconds, trace.up), Carrier(trace.bin_seconds, trace.down or trace.up)


def _close(pair: tuple[Pipe, Pipe]) -> None:
    for pipe in pair:
        pipe.source.close()


def _readable(readers: list[socket.socket], writers: list[socket.socket], seconds: float) -> set[socket.socket]:
    """Returns the `readers` that have data, once any reader or writer is ready or the time is over."""
    if all(each.fileno() < _SELECTABLE for each in (*readers, *writers)):
        # It has microsecond resolution, poll only milliseconds.
        return set(select.select(readers, writers, [], seconds)[0])
    wanted = {each.fileno(): select.POLLIN for each in readers}
    for each in writers:
        wanted[each.fileno()] = wanted.get(each.fileno(), 0) | select.POLLOUT
    poller = select.poll()
    for descriptor, events in wanted.items():
        poller.register(descriptor, events)
    ready = {descriptor for descriptor, events in poller.poll(math.ceil(1e3 * seconds)) if events & ~select.POLLOUT}
    return {each for each in readers if each.fileno() in ready}


def _has_more(source: socket.socket) -> bool:
    """Returns whether data is waiting now; data that arrives later has not waited."""
    try:
        return bool(source.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
