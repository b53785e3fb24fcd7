# SPDX-License-Identifier: Apache-2.0
"""Records the rates of a link in bins of 0.1 s."""

import time
from collections.abc import Callable

from atoll.infer.planning.trace import BIN_SECONDS, Trace

Counts = Callable[[], tuple[int, int]]  # bytes carried so far, upwards and downwards


def record(
    counts: Counts, seconds: float, *, bin_seconds: float = BIN_SECONDS, clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Trace:  # fmt: skip
    """Records the rates of `counts` in each bin of `seconds`. If the recorder wakes up late, the bins it missed have
    the mean rate since its previous reading. Raises ValueError for less than one bin."""
    bins = int(seconds / bin_seconds + 1e-9)
    if bins < 1:
        raise ValueError(f"{seconds:g} s is less than a bin of {bin_seconds:g} s: record for longer")
    begin = clock()
    last, last_at, done = counts(), 0.0, 0
    up: list[float] = []
    down: list[float] = []
    while done < bins:
        wait(max(0.0, begin + (done + 1) * bin_seconds - clock()))
        now, now_at = counts(), clock() - begin
        over = min(max(1, int(now_at / bin_seconds + 1e-9) - done), bins - done)
        for rates, before, after in ((up, last[0], now[0]), (down, last[1], now[1])):
            rates += [(after - before) / (now_at - last_at)] * over
        last, last_at, done = now, now_at, done + over
    return Trace(bin_seconds, up, down)
