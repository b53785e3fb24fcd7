# SPDX-License-Identifier: Apache-2.0
"""What paired samples say about their median, whatever their distribution."""

import math
from collections.abc import Sequence

from atoll.bench.block import quantile

CONFIDENCE = 0.95


def median_interval(samples: Sequence[float]) -> dict[str, float]:
    """The median, and `low` to `high` that hold the true one with at least 95 % (order statistics; with fewer than six
    samples the smallest and largest). Raises ValueError without samples."""
    ordered, count = sorted(samples), len(samples)
    rank, tail = 0, 0.5**count
    while rank < count // 2 and tail <= (1 - CONFIDENCE) / 2:
        rank += 1
        tail += math.comb(count, rank) * 0.5**count
    index = max(0, rank - 1)
    return {"median": quantile(ordered, 0.5), "low": ordered[index], "high": ordered[count - 1 - index]}
