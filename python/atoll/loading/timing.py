# SPDX-License-Identifier: Apache-2.0
"""How long this rank computes in a step, without its waits for others."""

import statistics
import time
from collections import deque

import torch


class StepTimes:
    """From the moment a step's first batch is handed to the user to the moment its last gradient is computed. On an
    accelerator between events on its current stream, read when they have passed: nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_device = device.type != "cpu"
        self._begin: torch.Event | float | None = None
        self._pairs: deque[tuple[torch.Event, torch.Event]] = deque()
        self._seconds: list[float] = []

    def begin(self) -> None:
        self._begin = self._now()

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

    def take(self) -> list[float]:
        """Seconds of the steps since the last call, as far as they are known by now."""
        while self._pairs and self._pairs[0][1].query():
            begin, end = self._pairs.popleft()
            self._seconds.append(begin.elapsed_time(end) * 1e-3)
        taken, self._seconds = self._seconds, []
        return taken

    def forget(self) -> None:
        """What was measured so far does not count: sizes change now."""
        self._pairs.clear()
        self._seconds.clear()

    def _now(self) -> torch.Event | float:
        if not self._on_device:
            return time.perf_counter()
        event = torch.Event(self._device, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._device))
        return event


def median(seconds: list[float]) -> float:
    """0 without samples."""
    return statistics.median(seconds) if seconds else 0.0
