# SPDX-License-Identifier: Apache-2.0
"""A line on stderr that shows the progress of the training."""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from atoll.watching.record import PlanEvent, WindowRecord, numbers

SHOWN_WAIT = 0.05  # smaller waiting shares are not shown
MAX_WAITING = 3
CLEAR = "\r\x1b[2K"  # the line that the cursor is in


def is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def live_line() -> "PlainLines | TerminalLine":
    """Returns the kind of line that suits stderr."""
    console = Console(stderr=True, highlight=False)
    return TerminalLine(console) if is_terminal() and not console.is_dumb_terminal else PlainLines()


def line_of(record: WindowRecord) -> str:
    """Returns one record as one line."""
    known = [("predicted", record.predicted_seconds), ("bound", record.bound_seconds)]
    compared = ", ".join(f"{name} {_seconds(value)}" for name, value in known if value is not None)
    measured = f"step {record.step}: {record.samples} samples in {_seconds(record.wall_seconds)} s"
    speed = f"{record.samples_per_second:.{0 if record.samples_per_second >= 10 else 2}f} samples/s"
    plan = f"plan {record.plan}: {numbers(record.batches)}"
    return f"{measured}{f' ({compared})' if compared else ''}, {speed}; waiting: {_waiting(record)}; {plan}"


def event_line(event: PlanEvent) -> str:
    return f"step {event.step}: {event.text}"


def _waiting(record: WindowRecord) -> str:
    """Returns the ranks that wait most."""
    waits = sorted(((share, rank) for rank, share in enumerate(record.waiting)), key=lambda wait: (-wait[0], wait[1]))
    worth = [f"rank {rank} {100 * share:.0f} %" for share, rank in waits if share >= SHOWN_WAIT]
    more = f" and {len(worth) - MAX_WAITING} more" if len(worth) > MAX_WAITING else ""
    return ", ".join(worth[:MAX_WAITING]) + more if worth else f"no rank over {100 * SHOWN_WAIT:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


class PlainLines:
    """Writes a line for each event, for a record if the last line is `every` seconds old, and for the last record."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, every: float = 5.0
    ) -> None:
        self._stream, self._clock, self._every = stream or sys.stderr, clock, every
        self._written: float | None = None
        self._untold: WindowRecord | None = None

    def __str__(self) -> str:
        return "Watch(live=True)"

    def window(self, record: WindowRecord) -> None:
        now = self._clock()
        if self._written is not None and now - self._written < self._every:
            self._untold = record
            return
        self._written, self._untold = now, None
        self._write(line_of(record))

    def event(self, event: PlanEvent) -> None:
        self._write(event_line(event))

    def close(self) -> None:
        untold, self._untold = self._untold, None
        if untold is not None:
            self._write(line_of(untold))

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class TerminalLine:
    """The last line of a terminal. Output of the program goes above it, and progress bars replace it until it is
    redrawn; events stay above it."""

    def __init__(self, console: Console) -> None:
        self._console, self._file = console, console.file  # the current stderr, which may be replaced later
        self._lock = threading.RLock()
        self._line: str | None = None
        self._is_shown = False
        self._proxies: dict[str, _Above] = {}

    def __str__(self) -> str:
        return "Watch(live=True)"

    def window(self, record: WindowRecord) -> None:
        with self._lock:
            if self._line is None:
                self._put_proxies()
            self.hide()
            self._line = line_of(record)
            self.show()

    def event(self, event: PlanEvent) -> None:
        with self._lock:
            self.hide()
            self._write(event_line(event) + "\n")
            self.show()

    def close(self) -> None:
        with self._lock:
            for name, proxy in self._proxies.items():
                if getattr(sys, name) is proxy:
                    setattr(sys, name, proxy.stream)
            self._proxies = {}
            if self._is_shown:
                self._write("\n")
            self._line, self._is_shown = None, False

    def above(self, stream: TextIO, text: str) -> int:
        """Writes to a stream of the same terminal. While a text has not ended its line, the live line is hidden."""
        with self._lock:
            self.hide()
            count = stream.write(text)
            if text.endswith("\n"):
                stream.flush()
                self.show()
            return count

    def hide(self) -> None:
        if self._is_shown:
            self._write(CLEAR)
        self._is_shown = False

    def show(self) -> None:
        if self._line is None:
            return
        text = Text(self._line)
        text.truncate(max(1, self._console.width - 1), overflow="ellipsis")
        self._write(CLEAR + text.plain)
        self._is_shown = True

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def _put_proxies(self) -> None:
        """Puts proxies in front of the streams that lead to a terminal."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and stream.isatty():
                self._proxies[name] = _Above(stream, self)
                setattr(sys, name, self._proxies[name])


class _Above:
    """A stream whose text appears above the line; otherwise it behaves like that stream."""

    def __init__(self, stream: TextIO, line: TerminalLine) -> None:
        self.stream, self._line = stream, line

    def write(self, text: str) -> int:
        return self._line.above(self.stream, text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
