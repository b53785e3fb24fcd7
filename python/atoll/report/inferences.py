# SPDX-License-Identifier: Apache-2.0
"""Statistics of the record of a session's inferences."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from atoll.report.records import Line, Record
from atoll.watching.run_record import latency_of

_NEEDED = {"seconds", "origin", "plan", "predicted", "bound", "up_bytes", "down_bytes", "joules", "missed"}


@dataclass
class Inferences:
    """The inferences of a record. `lines` are inferences in order, perhaps not all; counts include all."""

    record: Record
    lines: list[Line]
    states: list[Line]
    divisions: list[Line]
    counts: dict[str, Any]

    @staticmethod
    def of(record: Record) -> "Inferences":
        lines = [line for line in record.of("inference") if set(line) >= _NEEDED]
        totals = record.of("totals")
        counts = totals[-1] if totals else None
        if counts is None or len(lines) >= counts["inferences"]:  # no line is missing; the process may have been killed
            counts = _counted(lines)
        return Inferences(record, lines, record.of("state"), record.of("division"), counts)

    @property
    def number(self) -> int:
        return int(self.counts["inferences"])

    def latency(self, share: float) -> float:
        """Returns the latency that this share of inferences does not exceed."""
        buckets = self.counts.get("latencies")
        if buckets is None:
            return percentile([line["seconds"] for line in self.lines], share)
        left = share * sum(buckets.values())
        for bucket in sorted(buckets, key=int):
            left -= buckets[bucket]
            if left <= 0:
                return latency_of(int(bucket))
        return latency_of(max(map(int, buckets)))

    def state(self, name: str) -> Any:
        """Returns the newest known value."""
        return next((line[name] for line in reversed(self.states) if line.get(name) is not None), None)

    def distance(self) -> float | None:
        """The median of measured over bound, of inferences with a known bound."""
        shares = [line["seconds"] / line["bound"] for line in self.lines if line["bound"]]
        return median(shares) if shares else None


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the percentile of at least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def _counted(lines: Sequence[Line]) -> dict[str, Any]:
    origins = Counter(line["origin"] for line in lines)
    sums = {name: sum(line[name] for line in lines) for name in ("missed", "up_bytes", "down_bytes", "joules")}
    guarded = sum(bool(line.get("guard_used")) for line in lines)
    return {"inferences": len(lines), "guarded": guarded, "origins": origins, **sums}
