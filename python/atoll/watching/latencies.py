# SPDX-License-Identifier: Apache-2.0
"""Latencies counted in classes of a fixed ratio, so that any number of them takes little room."""

import math

_PER_OCTAVE = 32  # neighbours differ by 2.2 %


def bucket_of(seconds: float) -> int:
    """The class of a latency; `latency_of` is the middle of it."""
    return round(_PER_OCTAVE * math.log2(max(seconds, 1e-9)))


def latency_of(bucket: int) -> float:
    return float(2 ** (bucket / _PER_OCTAVE))
