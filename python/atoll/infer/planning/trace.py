# SPDX-License-Identifier: Apache-2.0
"""Recorded links: rates in bins of equal length, upwards and downwards, as CSV files. Raises ValueError that names the
file, the line and the expected content."""

import bisect
import csv
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

COLUMNS = ("seconds", "up_bytes_per_second", "down_bytes_per_second")
BIN_SECONDS = 0.1  # of our own recordings
_OURS = f"the columns {','.join(COLUMNS)}"
_PUBLISHED = "t_seconds,mbps"
_MAX_LINES = 10_000_000
_JITTER = 0.01  # of a bin
Counts = Callable[[], tuple[int, int]]  # bytes carried so far, upwards and downwards


@dataclass(frozen=True)
class Trace:
    """Bytes per second by bin. Without `down` both directions have the rates of `up`. `gaps`: the number of places
    where bins are missing; they are left out, not filled in."""

    bin_seconds: float
    up: Sequence[float]
    down: Sequence[float] = ()
    gaps: int = 0

    @property
    def seconds(self) -> float:
        return self.bin_seconds * len(self.up)

    def median(self) -> float:
        """The median of the rates upwards."""
        return statistics.median_low(self.up)

    def request(self) -> dict[str, Any]:
        """Returns the trace as the planner takes it."""
        return {"bin_seconds": self.bin_seconds, "up": list(self.up)} | ({"down": list(self.down)} if self.down else {})

    def part(self, begin: float, end: float) -> "Trace":
        """Returns the bins between two shares of the trace: part(0, 0.5) is the first half."""
        first, last = round(begin * len(self.up)), round(end * len(self.up))
        return Trace(self.bin_seconds, self.up[first:last], self.down[first:last], self.gaps)

    def write(self, path: str | Path) -> None:
        """Writes the trace as CSV. Raises OSError if the file cannot be written."""
        down = self.down or self.up
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(COLUMNS)
            for place, rates in enumerate(zip(self.up, down, strict=True)):
                lines.writerow([f"{place * self.bin_seconds:.6g}", *(f"{rate:.6g}" for rate in rates)])


class Carrier:
    """One direction of a repeating trace, and when bytes arrive over it."""

    def __init__(self, bin_seconds: float, rates: Sequence[float]) -> None:
        self._bin, self._rates = bin_seconds, list(rates)
        # Bytes before each bin, and of one repetition.
        self._sums = [0.0, *accumulate(rate * bin_seconds for rate in rates)]
        self._turn = bin_seconds * len(self._rates)

    def rate(self, time: float) -> float:
        return self._rates[int(time / self._bin) % len(self._rates)]

    def end(self, begin: float, count: float) -> float:
        """Returns when the last of `count` bytes sent from `begin` on arrives; infinite if nothing ever does."""
        if count <= 0:
            return begin
        total = self._sums[-1]
        if total <= 0:
            return math.inf
        turns, rest = divmod(begin, self._turn)
        place = min(int(rest / self._bin), len(self._rates) - 1)
        left = self._sums[place] + self._rates[place] * (rest - place * self._bin) + count
        more = math.ceil(left / total) - 1
        left = min(max(left - more * total, 0.0), total)
        place = min(bisect.bisect_left(self._sums, left, 1), len(self._rates)) - 1
        within = (left - self._sums[place]) / self._rates[place] if self._rates[place] > 0 else 0.0
        return max(begin, (turns + more) * self._turn + place * self._bin + within)


def read(path: str | Path) -> Trace:
    """Reads our own format, or the published one: columns t_seconds and mbps, or bits_per_second, for both
    directions."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            return _trace_of(str(path), list(rows.fieldnames or ()), rows)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}: give a trace of atoll profile link") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not CSV ({error}): give a file with {_OURS}") from None


def _trace_of(path: str, names: list[str], rows: Iterable[dict[str, Any]]) -> Trace:
    is_ours = set(COLUMNS[:2]) <= set(names)
    if not is_ours and not {"t_seconds", "mbps"} <= set(names):
        raise ValueError(f"{path} has the columns {','.join(names) or '(none)'}: give {_OURS}, or {_PUBLISHED}")
    times: list[float] = []
    up: list[float] = []
    down: list[float] = []
    for number, row in enumerate(rows, start=2):
        if number > _MAX_LINES:
            raise ValueError(f"{path} has more than {_MAX_LINES} lines: split it into several traces")
        where = f"{path}, line {number}"
        times.append(_number(where, row, COLUMNS[0] if is_ours else "t_seconds"))
        if is_ours:
            up.append(_number(where, row, COLUMNS[1]))
            if COLUMNS[2] in names:
                down.append(_number(where, row, COLUMNS[2]))
        elif "bits_per_second" in names:
            up.append(_number(where, row, "bits_per_second") / 8)
        else:
            up.append(_number(where, row, "mbps") * 1e6 / 8)
    if len(times) < 2:
        raise ValueError(f"{path} has {len(times)} bins: give at least 2, from which their length is derived")
    bin_seconds, gaps = _bins(path, times)
    return Trace(bin_seconds, up, down, gaps)


def _bins(path: str, times: list[float]) -> tuple[float, int]:
    steps = [later - earlier for earlier, later in pairwise(times)]
    bin_seconds = statistics.median_low(steps)
    if bin_seconds <= 0:
        raise ValueError(f"{path}: times must ascend: give the start of each bin, in order")
    gaps = 0
    for number, step in enumerate(steps, start=3):
        if step < bin_seconds * (1 - _JITTER):
            raise ValueError(
                f"{path}, line {number}: {step:.6g} s after the previous line, but bins are {bin_seconds:.6g} s: give "
                f"bins of equal length, in order"
            )
        gaps += step > bin_seconds * (1 + _JITTER)
    return bin_seconds, gaps


def _number(where: str, row: dict[str, Any], name: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {name} is {row.get(name)!r}: give a number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{where}: {name} is {row[name]}: give a number of at least 0")
    return value


def record(
    counts: Counts, seconds: float, *, clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Trace:  # fmt: skip
    """Records the rates of `counts` in each bin of `seconds`. If the recorder wakes up late, the bins it missed have
    the mean rate since its previous reading. Raises ValueError for less than one bin."""
    bins = int(seconds / BIN_SECONDS + 1e-9)
    if bins < 1:
        raise ValueError(f"{seconds:g} s is less than a bin of {BIN_SECONDS:g} s: record for longer")
    begin = clock()
    last, last_at, done = counts(), 0.0, 0
    up: list[float] = []
    down: list[float] = []
    while done < bins:
        wait(max(0.0, begin + (done + 1) * BIN_SECONDS - clock()))
        now, now_at = counts(), clock() - begin
        over = min(max(1, int(now_at / BIN_SECONDS + 1e-9) - done), bins - done)
        for rates, before, after in ((up, last[0], now[0]), (down, last[1], now[1])):
            rates += [(after - before) / (now_at - last_at)] * over
        last, last_at, done = now, now_at, done + over
    return Trace(BIN_SECONDS, up, down)
