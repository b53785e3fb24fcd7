# SPDX-License-Identifier: Apache-2.0
"""The output of the local ranks: one thread reads all of it, adds prefixes, and remembers its end."""

import os
import queue
import select
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atoll.launch.lines import Lines

STDOUT, STDERR = 1, 2
_TAIL_BYTES = 16384
_TAIL_LINES = 20
_READ_BYTES = 65536
_DRAIN_TIMEOUT_S = 5
_POLL_S = 0.01
_TRACEBACK = b"Traceback (most recent call last)"


@dataclass
class Copy:
    """A file that also receives a stream: all of it, or the lines that contain one of `needles`, after `prefix`."""

    path: str
    needles: Sequence[bytes] = ()
    prefix: bytes = b""


@dataclass(eq=False)
class _Stream:
    source: int
    target: int
    lines: Lines
    copies: list[tuple[Copy, Lines]]
    tail: bytes = b""
    traceback_at: float | None = None


@dataclass
class _Rank:
    streams: dict[int, _Stream] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    ended_at: float | None = None


class Output:
    """Reads the streams of the local ranks on its own thread and writes them to this process's stdout and stderr, line
    by line. write() is thread-safe; the other methods must be called on one thread."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._ends: list[int] = []
        self._unfinished: list[_Stream] = []
        self._lock = threading.Lock()
        self._broken: set[object] = set()
        self._posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_source, self._wake = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_source, selectors.EVENT_READ, self._take_posted)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="atoll-output", daemon=True)
        self._thread.start()

    def open(self, local_rank: int, target: int, prefix: bytes | None, copies: Sequence[Copy] = ()) -> str:
        """Returns a path at which to open the rank's STDOUT or STDERR, before watch() is called; see Lines for
        `prefix`."""
        source, end = os.pipe()
        self._ends.append(end)
        stream = _Stream(source, target, Lines(prefix), [(copy, Lines(copy.prefix)) for copy in copies])
        self._ranks.setdefault(local_rank, _Rank()).streams[target] = stream
        self._unfinished.append(stream)
        self._post(lambda: self._register(source, lambda: self._read(stream)))
        return f"/proc/self/fd/{end}"

    def remember_file(self, local_rank: int, target: int, path: str) -> None:
        """Notes that the rank's stream goes only to this file, for last_lines()."""
        self._ranks.setdefault(local_rank, _Rank()).files[target] = path

    def watch(self, pids: Mapping[int, int]) -> None:
        """Notes that the local ranks have started as these processes, and records their ends from here on."""
        for end in self._ends:
            os.close(end)
        self._ends.clear()
        for local_rank, pid in pids.items():
            rank = self._ranks.setdefault(local_rank, _Rank())
            rank.ended_at = None
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                continue
            self._post(lambda fd=descriptor, rank=rank: self._register(fd, lambda: self._note_end(fd, rank)))  # type: ignore[misc]

    def settle(self, timeout_s: float) -> None:
        """Waits until all output of ended ranks has been read, but not longer than `timeout_s`, because a process that
        they left behind may hold their streams open."""
        deadline = time.monotonic() + timeout_s
        while self._unfinished and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Shows the remaining output, including unfinished lines. Takes at most 10 s."""
        self._post(self._stop)
        self._thread.join(2 * _DRAIN_TIMEOUT_S)

    def write(self, target: int, data: bytes) -> None:
        """Writes all of `data` to this process's STDOUT or STDERR, in one piece. Drops it once the reader is gone."""
        with self._lock:
            rest = memoryview(data)
            while rest and target not in self._broken:
                try:
                    rest = rest[os.write(target, rest) :]
                except BlockingIOError:
                    select.select([], [target], [])
                except OSError:
                    self._broken.add(target)

    def ended_at(self, local_rank: int) -> float | None:
        """Returns when the rank's process ended, in seconds since 1970; None if it was not observed."""
        rank = self._ranks.get(local_rank)
        return rank.ended_at if rank else None

    def traceback_at(self, local_rank: int) -> float | None:
        """Returns when the rank last started to print a Python traceback, in seconds since 1970."""
        rank = self._ranks.get(local_rank)
        return rank.streams[STDERR].traceback_at if rank and STDERR in rank.streams else None

    def last_lines(self, local_rank: int) -> list[str]:
        """Returns the rank's last lines on stderr, or on stdout if there are none. Call it after close() or
        settle()."""
        rank = self._ranks.get(local_rank, _Rank())
        for target in (STDERR, STDOUT):
            data = rank.streams[target].tail if target in rank.streams else _end_of_file(rank.files.get(target))
            lines = data.decode(errors="replace").splitlines()[-_TAIL_LINES:]
            if any(line.strip() for line in lines):
                return lines
        return []

    def _post(self, action: Callable[[], None]) -> None:
        self._posted.put(action)
        os.write(self._wake, b"\0")

    def _take_posted(self) -> None:
        os.read(self._wake_source, _READ_BYTES)
        while not self._posted.empty():
            self._posted.get()()

    def _register(self, descriptor: int, action: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def _stop(self) -> None:
        self._closing = True

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                self._serve(key)
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while time.monotonic() < deadline and (ready := self._selector.select(0)):
            for key, _ in ready:
                self._serve(key)
        for stream in list(self._unfinished):
            self._end(stream)
        self._selector.close()

    def _serve(self, key: selectors.SelectorKey) -> None:
        """Reads one stream. An error must not stop the other streams, whose ranks would block without a reader."""
        try:
            key.data()
        except OSError as error:
            self._selector.unregister(key.fd)
            self.write(STDERR, f"atoll run: a rank's output can no longer be read: {error}\n".encode())

    def _read(self, stream: _Stream) -> None:
        data = os.read(stream.source, _READ_BYTES)
        if not data:
            self._selector.unregister(stream.source)
            self._end(stream)
            return
        if stream.target == STDERR and _TRACEBACK in stream.tail[1 - len(_TRACEBACK) :] + data:
            stream.traceback_at = time.time()
        stream.tail = (stream.tail + data)[-_TAIL_BYTES:]
        for copy, lines in stream.copies:
            self._copy(copy, _matching(lines.feed(data, time.monotonic()), copy) if copy.needles else data)
        self.write(stream.target, stream.lines.feed(data, time.monotonic()))

    def _end(self, stream: _Stream) -> None:
        self._unfinished.remove(stream)
        os.close(stream.source)
        for copy, lines in stream.copies:
            if copy.needles:
                self._copy(copy, _matching(lines.end(), copy))
        self.write(stream.target, stream.lines.end())

    def _copy(self, copy: Copy, data: bytes) -> None:
        if not data or copy.path in self._broken:
            return
        try:
            with Path(copy.path).open("ab") as file:
                file.write(data)
        except OSError as error:
            self._broken.add(copy.path)
            self.write(STDERR, f"atoll run: cannot write to {copy.path} any more: {error.strerror}\n".encode())

    def _note_end(self, descriptor: int, rank: _Rank) -> None:
        rank.ended_at = time.time()
        self._selector.unregister(descriptor)
        os.close(descriptor)


def _matching(lines: bytes, copy: Copy) -> bytes:
    return b"".join(line for line in lines.splitlines(keepends=True) if any(needle in line for needle in copy.needles))


def _end_of_file(path: str | None) -> bytes:
    if not path:
        return b""
    try:
        with Path(path).open("rb") as file:
            file.seek(-min(_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return file.read()
    except OSError:
        return b""
