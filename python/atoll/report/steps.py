# SPDX-License-Identifier: Apache-2.0
"""The phases of a training's steps, by rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import NamedTuple

from atoll.report.records import Training
from atoll.watching.record import WindowRecord

ENOUGH = 4  # from this many windows on the first one, with one-time work, does not count


class Parts(NamedTuple):
    """Seconds of the phases of one step of one rank, which add up to the step."""

    load: float  # waits for data
    compute: float
    wait: float  # for the rank that takes longest to load and compute
    exchange: float  # of gradients, unless computing hides it
    rest: float


def parts_of(window: WindowRecord, rank: int) -> Parts:
    """Returns the phases; `exchange` is part of the rest if it was not measured."""
    load, compute = window.input_seconds[rank], window.compute_seconds[rank]
    longest = max(a + b for a, b in zip(window.input_seconds, window.compute_seconds, strict=True))
    wait = longest - load - compute
    exposed = window.exposed_seconds[rank] if window.exposed_seconds else 0.0
    exchange = max(0.0, exposed - wait)
    return Parts(load, compute, wait, exchange, max(0.0, window.wall_seconds - longest - exchange))


def counted(training: Training) -> list[WindowRecord]:
    """Returns the windows that represent the training."""
    windows = [window for window in training.windows if window.wall_seconds > 0]
    return windows[1:] if len(windows) >= ENOUGH else windows


@dataclass(frozen=True)
class Summary:
    """Medians by rank over the windows that count, of each phase separately."""

    windows: list[WindowRecord]
    devices: tuple[str, ...]
    parts: list[Parts]
    wall: float
    samples_per_second: float
    bound: float | None
    bridge: tuple[float, ...]  # by rank; empty: not measured
    staging: tuple[float, ...]

    @property
    def ranks(self) -> range:
        return range(len(self.devices))

    @property
    def distance(self) -> float | None:
        return self.wall / self.bound if self.bound else None

    def name(self, rank: int) -> str:
        return f"rank {rank} ({self.devices[rank]})"

    def share(self, seconds: float) -> float:
        return seconds / self.wall if self.wall > 0 else 0.0


def summary(training: Training) -> Summary | None:
    """Returns the summary; None for a record without measured windows."""
    windows = counted(training)
    if not windows:
        return None
    devices = windows[-1].devices
    windows = [window for window in windows if window.devices == devices]
    by_rank = [[parts_of(window, rank) for window in windows] for rank in range(len(devices))]
    parts = [Parts(*(median(column) for column in zip(*rank, strict=True))) for rank in by_rank]
    return Summary(
        windows, devices, parts, median(window.wall_seconds for window in windows),
        median(window.samples_per_second for window in windows),
        _known([window.bound_seconds for window in windows]),
        _by_rank(windows, lambda window: window.bridge_seconds),
        _by_rank(windows, lambda window: window.staging_seconds),
    )  # fmt: skip


def link_bytes(windows: Sequence[WindowRecord]) -> dict[tuple[int, int], float]:
    """Returns the mean bytes of one step by sender and receiver."""
    found: dict[tuple[int, int], float] = {}
    for window in windows:
        for source, target, count in window.links:
            found[source, target] = found.get((source, target), 0.0) + count / len(windows)
    return found


def representative_ranks(of: Summary, most: int) -> list[int]:
    """Returns all ranks, or those that load and compute longest and those that wait longest."""
    if len(of.devices) <= most:
        return list(of.ranks)
    by_wait = sorted(of.ranks, key=lambda rank: of.parts[rank].wait)
    half = most // 2
    return sorted({*by_wait[:half], *by_wait[-half:]})


def _known(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return median(there) if there else None


def _by_rank(
    windows: Sequence[WindowRecord], values: Callable[[WindowRecord], tuple[float, ...]]
) -> tuple[float, ...]:  # fmt: skip
    there = [values(window) for window in windows if values(window)]
    return tuple(mean(column) for column in zip(*there, strict=True)) if there else ()
