# SPDX-License-Identifier: Apache-2.0
"""A figure that was found in a result file."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]


@dataclass
class Found:
    """The figure that is judged: the worst of an aim's cases, with its spread over rounds."""

    value: float
    low: float
    high: float
    case: str


def one(value: float | None, case: str) -> list[Found]:
    """A figure without a spread; an empty list for None."""
    return [] if value is None else [Found(value, value, value, case)]


def rows_of(document: Document, operation: str, ranks: int, first: int = 0, last: int = 1 << 40) -> Iterable[Any]:
    """Returns the rows of an operation over this many ranks, with `first` to `last` bytes."""
    for part in document["parts"]:
        if part.get("operation", "all_reduce") == operation and part["ranks"] == ranks:
            yield from (row for row in part["rows"] if first <= row["bytes"] <= last)
