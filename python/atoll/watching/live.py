# SPDX-License-Identifier: Apache-2.0
"""A line on standard error that says how the training goes."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from atoll.watching.record import PlanEvent, WindowRecord, numbers

SHOWN_WAIT = 0.05  # smaller waiting shares are not worth a word
MOST_WAITING = 3


def is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def live_line() -> "PlainLines | TerminalLine":
    """What fits standard error."""
    console = Console(stderr=True, highlight=False)
    return TerminalLine(console) if is_terminal() and not console.is_dumb_terminal else PlainLines()


def line_of(record: WindowRecord) -> str:
    """One record in one line."""
    known = [("predicted", record.predicted_seconds), ("bound", record.bound_seconds)]
    compared = ", ".join(f"{name} {_seconds(value)}" for name, value in known if value is not None)
    measured = f"step {record.step}: {record.samples} samples in {_seconds(record.wall_seconds)} s"
    speed = f"{record.samples_per_second:.{0 if record.samples_per_second >= 10 else 2}f} samples/s"
    plan = f"plan {record.plan}: {numbers(record.batches)}"
    return f"{measured}{f' ({compared})' if compared else ''}, {speed}; waiting: {_waiting(record)}; {plan}"


def event_line(event: PlanEvent) -> str:
    return f"step {event.step}: {event.text}"


def _waiting(record: WindowRecord) -> str:
    """Who waits most."""
    waits = sorted(((share, rank) for rank, share in enumerate(record.waiting)), key=lambda wait: (-wait[0], wait[1]))
    worth = [f"rank {rank} {100 * share:.0f} %" for share, rank in waits if share >= SHOWN_WAIT]
    more = f" and {len(worth) - MOST_WAITING} more" if len(worth) > MOST_WAITING else ""
    return ", ".join(worth[:MOST_WAITING]) + more if worth else f"no rank over {100 * SHOWN_WAIT:.0f} %"


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


class PlainLines:
    """A line for each event, for a record when the last line is `every` seconds old, and for the last record."""

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
    """The last line of a terminal; what the program prints, and events, go above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def __str__(self) -> str:
        return "Watch(live=True)"

    def window(self, record: WindowRecord) -> None:
        line = Text(line_of(record), no_wrap=True, overflow="ellipsis")
        if self._live is None:
            # rich writes what it redirects to its own console: only where that is the same terminal.
            same = sys.stdout is not None and sys.stdout.isatty()
            self._live = Live(line, console=self._console, auto_refresh=False, redirect_stdout=same)
            self._live.start()
        self._live.update(line, refresh=True)

    def event(self, event: PlanEvent) -> None:
        self._console.print(Text(event_line(event)))

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
