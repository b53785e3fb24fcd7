# SPDX-License-Identifier: Apache-2.0
"""How long this rank computes in a step, without its waits for others, and how long it waits for its data."""

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
    """Seconds of one step of this rank: medians of computing and of waiting for data, and the mean from step to step. 0
    where nothing was measured."""

    compute: float
    input: float
    wall: float
    exposed: float | None = None
    """The median from this rank's last gradient to that of all ranks. None: not measured."""
    inside: float = 0.0
    """The mean in collectives, without waits for other islands."""


class StepTimes:
    """From the moment a step's first batch is handed to the user to the moment its last gradient is computed. On an
    accelerator between events on its current stream, read when they have passed: nothing waits for them."""

    def __init__(self, device: torch.device, inside: Callable[[], float] = lambda: 0.0) -> None:
        """`inside`: seconds in collectives, without waits for other islands, since some moment."""
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
        """The loop asks for its next batch."""
        self._asked = time.perf_counter()

    def begin(self) -> None:
        """A step's first batch is there."""
        self._input.append(time.perf_counter() - self._asked)
        self._begin, self._ready, self._reduced = self._now(), None, None

    def end(self) -> None:
        """The loop is done with a step."""
        self._close()
        self._steps += 1

    def ready(self) -> None:
        """Called where a gradient is computed, which may be another thread than `begin`'s, but never at once: the last
        call of a step counts, before that of `reduced`."""
        if self._begin is not None and self._reduced is None:
            self._ready = self._now()

    def reduced(self) -> None:
        """Called where the last gradient of all ranks is there, after `ready` and before the step ends; on any
        thread."""
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
        """Of the steps since the last call, or since `forget`; those that a device has not done yet come with the
        next."""
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
        """What was measured so far does not count: sizes change now."""
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
    """Times between moments: those on a device are known when it has passed them."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any]] = deque()
        self._known: list[float] = []

    def add(self, begin: Moment, end: Moment) -> None:
        if isinstance(begin, float) and isinstance(end, float):
            self._known.append(end - begin)
        else:
            self._pending.append((begin, end))

    def seconds(self) -> list[float]:
        """Those that have become known since the last call."""
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            self._known.append(begin.elapsed_time(end) * 1e-3)
        known, self._known = self._known, []
        return known


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
