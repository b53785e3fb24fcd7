# SPDX-License-Identifier: Apache-2.0
"""Measures the communication of a step on this rank: its time, and the bytes sent to each rank."""

from dataclasses import dataclass

import torch.distributed as dist

from atoll.loading.communication import backend_if_any

MAX_RANKS = 64  # in groups whose links are counted individually
UNKNOWN = -1.0


@dataclass(frozen=True)
class Shown:
    """The communication of one step, as the mean over a window. Seconds are UNKNOWN if the group's backend does not
    report them."""

    bridge: float  # waits for other islands in collectives, while other threads may compute
    staging: float  # copies between the device and the host
    sent: list[float]  # bytes by rank; empty in a large group

    def numbers(self) -> list[float]:
        return [self.bridge, self.staging, *self.sent]

    @staticmethod
    def of(numbers: list[float]) -> "Shown":
        return Shown(numbers[0], numbers[1], numbers[2:])


class Traffic:
    """Counts traffic from its construction on."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._backend = backend_if_any(group)
        self._ranks = dist.get_world_size(group)
        self._before = self._now()

    def take(self, steps: int) -> Shown:
        """Returns the means over the `steps` steps since the last call; equally many numbers on each rank."""
        now, before = self._now(), self._before
        self._before = now
        each = [(new - old) / max(1, steps) for new, old in zip(now, before, strict=True)]
        if self._backend is None:
            each[:2] = [UNKNOWN, UNKNOWN]
        return Shown.of(each)

    def _now(self) -> list[float]:
        counted = self._ranks if self._ranks <= MAX_RANKS else 0
        if self._backend is None:
            return [0.0] * (2 + counted)
        sent = self._backend.sent_bytes()[:counted]
        return [self._backend.time_split()["bridge_s"], self._backend.staging_seconds(), *map(float, sent)]
