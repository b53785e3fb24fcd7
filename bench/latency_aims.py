# SPDX-License-Identifier: Apache-2.0
"""How figures of single calls are found in the results of `latency`."""

from typing import Any

import nothing
from found import Document, Found, rows_of


def call_time(size: int, ranks: int = 2) -> Any:
    def measure(document: Document) -> list[Found]:
        times = [row["call_us"]["atoll"] for row in rows_of(document, "all_reduce", ranks, size, size)]
        return [Found(time["median"], time["median"], time["p99"], "to the 99th percentile") for time in times]

    return measure


def above_floor(size: int) -> Any:
    """Returns what a call takes more than one of a backend that does nothing."""

    def measure(document: Document) -> list[Found]:
        found = []
        for row in rows_of(document, "all_reduce", 2, size, size):
            if nothing.NAME in row["call_us"]:
                floor, time = row["call_us"][nothing.NAME]["median"], row["call_us"]["atoll"]
                found.append(Found(time["median"] - floor, time["median"] - floor, time["p99"] - floor,
                                   f"above {floor:.1f} us, to the 99th percentile"))  # fmt: skip
        return found

    return measure


def tail(size: int) -> Any:
    """Returns the 99th percentile of calls, of their median."""

    def measure(document: Document) -> list[Found]:
        ratios = [
            row["call_us"]["atoll"]["p99"] / row["call_us"]["atoll"]["median"]
            for row in rows_of(document, "all_reduce", 2, size, size)
        ]
        return [Found(ratio, ratio, ratio, "") for ratio in ratios]

    return measure
