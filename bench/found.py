# SPDX-License-Identifier: Apache-2.0
"""A figure that was found in a result file."""

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
