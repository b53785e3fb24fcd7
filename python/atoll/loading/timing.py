# SPDX-License-Identifier: Apache-2.0
"""Measures how long this rank computes in a step, without waits for other ranks, and how long it waits for data."""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Moment = torch.Event | float  # on a device, or on the host's clock


@dataclass(frozen=True)
class Summary:
    """Seconds of one step of this rank: the medians of computing and of waiting for data, and the mean from step to
    step. 0 if nothing was measured."""

    compute: float
    input: float
    wall: float
    exposed: float | None = None
    """The median time from this rank's last gradient to the last reduced one. None: not measured."""
    inside: float = 0.0
    """The mean time in collectives, without waits for other islands."""


class StepTimes:
    """Times steps from the moment when the first batch is handed to the user to the moment when the last gradient is
    computed. On an accelerator by events on its current stream, which are read once they have passed, without
    waiting."""

    def __init__(self, device: torch.device, inside: Callable[[], float] = lambda: 0.0) -> None:
        """`inside`: returns the seconds in collectives, without waits for other islands, since any fixed moment."""
        self._device, self._inside = device, inside
        self._on_device = device.type != "cpu"
        self._begin: Moment | None = None
        self._ready: Moment | None = None
        self._reduced: Moment | None = None
        self._computing, self._reducing = _Spans(), _Spans()
        self._input: list[float] = []
        self._asked = time.perf_counter()
        self.forget()

    def asks(self) -> None:
        """Called when the loop requests its next batch."""
        self._asked = time.perf_counter()

    def begin(self) -> None:
        """Called when a step's first batch is available."""
        self._input.append(time.perf_counter() - self._asked)
        self._begin, self._ready, self._reduced = self._now(), None, None

    def end(self) -> None:
        """Called when the loop is done with a step."""
        self._close()
        self._steps += 1

    def ready(self) -> None:
        """Called when a gradient is computed, perhaps on another thread than `begin`, but never concurrently. The last
        call of a step counts; it comes before that of `reduced`."""
        if self._begin is not None and self._reduced is None:
            self._ready = self._now()

    def reduced(self) -> None:
        """Called when the last reduced gradient is available, after `ready` and before the step ends; on any thread."""
        if self._ready is not None and self._reduced is None:
            self._reduced = self._now()

    def _close(self) -> None:
        begin, ready, reduced = self._begin, self._ready, self._reduced
        self._begin = self._ready = self._reduced = None
        if begin is not None and ready is not None:
            self._computing.add(begin, ready)
            if reduced is not None:
                self._reducing.add(ready, reduced)

    def take(self) -> "Summary":
        """Returns the summary of the steps since the last call or `forget`. Steps that a device has not completed yet
        are left for the next call."""
        self._close()
        steps = max(1, self._steps)
        wall = (time.perf_counter() - self._stepped) / steps if self._steps else 0.0
        inside = (self._inside() - self._inside_before) / steps
        reducing = self._reducing.seconds()
        exposed = _median(reducing) if reducing else None
        taken = Summary(_median(self._computing.seconds()), _median(self._input), wall, exposed, inside)
        self._begin_window()
        return taken

    def forget(self) -> None:
        """Discards the measurements so far, because sizes change now."""
        self._computing, self._reducing = _Spans(), _Spans()
        self._begin_window()

    def _begin_window(self) -> None:
        self._input = []
        self._stepped, self._steps, self._inside_before = time.perf_counter(), 0, self._inside()

    def _now(self) -> Moment:
        if not self._on_device:
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event


class _Spans:
    """Times between moments. Times on a device are known once it has passed both moments."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any]] = deque()
        self._known: list[float] = []

    def add(self, begin: Moment, end: Moment) -> None:
        if isinstance(begin, float) and isinstance(end, float):
            self._known.append(end - begin)
        else:
            self._pending.append((begin, end))

    def seconds(self) -> list[float]:
        """Returns the times that have become known since the last call."""
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            self._known.append(begin.elapsed_time(end) * 1e-3)
        known, self._known = self._known, []
        return known


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
