# SPDX-License-Identifier: Apache-2.0
"""The figures of split inference in result files, for the table of aims."""

from typing import Any

import split_bytes
import split_tables
from found import Document, Found, one


def divided(profile: str, encoding: str, environment: str, over_local: bool = False) -> Any:
    """Measures `auto` with a guard over a recorded link, in milliseconds: the mean, or the amount by which its 99th
    percentile exceeds that of local inference."""

    def measure(document: Document) -> list[Found]:
        row = split_tables.row_of(document, profile, encoding, environment, "auto, guarded")
        local = split_tables.row_of(document, profile, encoding, environment, "local")
        if row is None or local is None:
            return []
        seconds = row["seconds"]
        if over_local:
            return one(1e3 * (seconds["p99"] - local["seconds"]["p99"]), f"{environment}, simulated")
        mean, median, p99 = (1e3 * seconds[name] for name in ("mean", "p50", "p99"))
        return [Found(mean, median, p99, f"{environment}: mean (p50 to p99), simulated")]

    return measure


def software(name: str) -> Any:
    """Measures the overhead of sessions with real bytes, in milliseconds, as a quantile of each case: at constant
    rates, and of `auto` over recorded links where devices are as fast as published."""

    def measure(document: Document) -> list[Found]:
        found = []
        for row in document["rates"]:
            found += _overhead(row, name, f"{row['profile']}, {row['policy']} at {row['mbps']:g} Mbit/s")
        for case in document["cases"]:
            for environment, link in case["links"].items():
                if case["speed"] == 1:
                    found += _overhead(link["rows"]["auto"], name, f"{case['profile']}, auto {environment}")
        return found

    return measure


def _overhead(row: Document, name: str, case: str) -> list[Found]:
    if not row["overhead"]:
        return []
    value, low, high = (1e3 * row["overhead"][each] for each in (name, "p50", "p99"))
    return [Found(value, low, high, f"{case}, p50 to p99")]


def with_bytes(profile: str, encoding: str, environment: str, over_local: bool = False) -> Any:
    """Measures `auto` with real bytes over a recorded link, in milliseconds: the mean, or the amount by which its 99th
    percentile exceeds that of local inference in the same run."""

    def measure(document: Document) -> list[Found]:
        case = split_bytes.Case(profile, encoding)
        rows = [split_bytes.row_for(document, case, environment, name) for name in ("auto", "local")]
        if not all(row and row["seconds"] for row in rows):
            return []
        ours, local = (row["seconds"] for row in rows if row)
        part = "the whole record" if document["full"] else "a window"
        if over_local:
            return one(1e3 * (ours["p99"] - local["p99"]), f"{environment}, {part}")
        mean, median, p99 = (1e3 * ours[name] for name in ("mean", "p50", "p99"))
        return [Found(mean, median, p99, f"{environment}: mean (p50 to p99), {part}")]

    return measure
