# SPDX-License-Identifier: Apache-2.0
"""Measures how long this rank computes in a step, without waits for other ranks, and how long it waits for data."""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch

NOT_MEASURED = -1.0
Moment = Any  # an event on a device, or seconds on the host's clock


def now(device: torch.device) -> Moment:
    """Returns a moment on the device's clock, without waiting for the device."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.Event(device, enable_timing=True)
    event.record(torch.accelerator.current_stream(device))
    return event


def has_passed(moment: Moment) -> bool:
    return isinstance(moment, float) or bool(moment.query())


def seconds_between(begin: Moment, end: Moment) -> float:
    return end - begin if isinstance(begin, float) else float(begin.elapsed_time(end)) * 1e-3


@dataclass(frozen=True)
class Summary:
    """Seconds of a rank's step: medians of computing and waiting for data, the mean from step to step. 0: unknown."""

    compute: float
    input: float
    wall: float
    exposed: float | None = None
    """The median time from this rank's last gradient to the last reduced one. None: not measured."""
    inside: float = 0.0
    """The mean time in collectives, without waits for other islands."""


@dataclass(frozen=True)
class Seen:
    """One rank's numbers of a window, in the order in which they are exchanged. Times are seconds of one step."""

    compute: float
    input: float
    batch: float
    next_step: float
    operations: float
    memory: float
    latency: float
    wall: float = 0.0
    exposed: float = NOT_MEASURED  # from the rank's last gradient to that of all ranks
    inside: float = 0.0  # in collectives, without waits for other islands
    plans: float = 0.0  # a hash of what must be equal on all ranks

    def numbers(self) -> list[float]:
        return list(astuple(self))


class StepTimes:
    """Times steps from the moment when the first batch is handed to the user to the moment when the last gradient is
    computed. On an accelerator by events on its current stream, which are read once passed, without waiting."""

    def __init__(self, device: torch.device, inside: Callable[[], float] = lambda: 0.0) -> None:
        """`inside`: returns the seconds in collectives, without waits for other islands, since any fixed moment."""
        self._device, self._inside = device, inside
        self._begin: Moment = None
        self._ready: Moment = None
        self._reduced: Moment = None
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
            self._computing.append((begin, ready))
            if reduced is not None:
                self._reducing.append((ready, reduced))

    def take(self) -> Summary:
        """Returns the summary of the steps since the last call or `forget`. Steps that a device has not completed yet
        are left for the next call."""
        self._close()
        steps = max(1, self._steps)
        wall = (time.perf_counter() - self._stepped) / steps if self._steps else 0.0
        inside = (self._inside() - self._inside_before) / steps
        reducing = _take_passed(self._reducing)
        exposed = _median(reducing) if reducing else None
        taken = Summary(_median(_take_passed(self._computing)), _median(self._input), wall, exposed, inside)
        self._begin_window()
        return taken

    def forget(self) -> None:
        """Discards the measurements so far, because sizes change now."""
        self._computing: deque[tuple[Moment, Moment]] = deque()
        self._reducing: deque[tuple[Moment, Moment]] = deque()
        self._begin_window()

    def _begin_window(self) -> None:
        self._input: list[float] = []
        self._stepped, self._steps, self._inside_before = time.perf_counter(), 0, self._inside()

    def _now(self) -> Moment:
        return now(self._device)


def _take_passed(spans: deque[tuple[Moment, Moment]]) -> list[float]:
    """Removes the spans that the device has passed, and returns their seconds."""
    seconds = []
    while spans and has_passed(spans[0][1]):
        seconds.append(seconds_between(*spans.popleft()))
    return seconds


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
