# SPDX-License-Identifier: Apache-2.0
"""Counts latencies in buckets of a fixed ratio, so that any number of them takes little memory."""

import math

_PER_OCTAVE = 32  # neighbouring buckets differ by 2.2 %


def bucket_of(seconds: float) -> int:
    """Returns the bucket of a latency; `latency_of` returns its middle."""
    return round(_PER_OCTAVE * math.log2(max(seconds, 1e-9)))


def latency_of(bucket: int) -> float:
    return float(2 ** (bucket / _PER_OCTAVE))
