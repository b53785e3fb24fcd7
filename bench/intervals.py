# SPDX-License-Identifier: Apache-2.0
"""Confidence intervals of the median of paired samples, for any distribution."""

import math
from collections.abc import Sequence

from atoll.bench.block import quantile

CONFIDENCE = 0.95


def median_interval(samples: Sequence[float]) -> dict[str, float]:
    """Returns the median, and `low` and `high` between which the true one lies with a probability of at least 95 %
    (order statistics; with fewer than six samples the smallest and the largest). Raises ValueError without samples."""
    ordered, count = sorted(samples), len(samples)
    rank, tail = 0, 0.5**count
    while rank < count // 2 and tail <= (1 - CONFIDENCE) / 2:
        rank += 1
        tail += math.comb(count, rank) * 0.5**count
    index = max(0, rank - 1)
    return {"median": quantile(ordered, 0.5), "low": ordered[index], "high": ordered[count - 1 - index]}
