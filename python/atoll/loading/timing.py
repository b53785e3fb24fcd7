# SPDX-License-Identifier: Apache-2.0
"""How long this rank computes in a step, without its waits for others, and how long it waits for its data."""

import statistics
import time
from collections import deque
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Summary:
    """Seconds of one step of this rank: medians of computing and of waiting for data, and the mean from step to step. 0
    where nothing was measured."""

    compute: float
    input: float
    wall: float


class StepTimes:
    """From the moment a step's first batch is handed to the user to the moment its last gradient is computed. On an
    accelerator between events on its current stream, read when they have passed: nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_device = device.type != "cpu"
        self._begin: torch.Event | float | None = None
        self._pairs: deque[tuple[torch.Event, torch.Event]] = deque()
        self._seconds: list[float] = []
        self._input: list[float] = []
        self._asked = self._stepped = time.perf_counter()
        self._steps = 0

    def asks(self) -> None:
        """The loop asks for its next batch."""
        self._asked = time.perf_counter()

    def begin(self) -> None:
        """A step's first batch is there."""
        self._input.append(time.perf_counter() - self._asked)
        self._begin = self._now()

    def end(self) -> None:
        """The loop is done with a step."""
        self._steps += 1

    def ready(self) -> None:
        """Called where the last gradient is computed, which may be another thread than `begin`'s, but never at once."""
        begin, self._begin = self._begin, None
        if begin is None:
            return
        end = self._now()
        if isinstance(begin, torch.Event) and isinstance(end, torch.Event):
            self._pairs.append((begin, end))
        elif isinstance(begin, float) and isinstance(end, float):
            self._seconds.append(end - begin)

    def take(self) -> "Summary":
        """Of the steps since the last call, or since `forget`; those that a device has not done yet come with the
        next."""
        while self._pairs and self._pairs[0][1].query():
            begin, end = self._pairs.popleft()
            self._seconds.append(begin.elapsed_time(end) * 1e-3)
        now = time.perf_counter()
        wall = (now - self._stepped) / self._steps if self._steps else 0.0
        taken = Summary(_median(self._seconds), _median(self._input), wall)
        self.forget()
        return taken

    def forget(self) -> None:
        """What was measured so far does not count: sizes change now."""
        self._pairs.clear()
        self._seconds, self._input = [], []
        self._stepped, self._steps = time.perf_counter(), 0

    def _now(self) -> torch.Event | float:
        if not self._on_device:
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0
