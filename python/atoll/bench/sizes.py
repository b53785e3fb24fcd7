# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them: "4..256M", "1K..1G*4", "64K,1M,25M"."""

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Returns a size in bytes; K, M and G are powers of 1024. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(f"size {text!r}: expected a number with K, M or G, such as 64K")
    return int(match.group(1)) * _UNITS[match.group(2).upper()]


def parse_sizes(text: str) -> list[int]:
    """Returns the sizes of a list, or of a range that doubles (or grows by the factor after `*`) and includes its end.
    Raises ValueError."""
    if ".." not in text:
        return [parse_size(part) for part in text.split(",")]
    first, _, rest = text.partition("..")
    last, _, factor_text = rest.partition("*")
    begin, end = parse_size(first), parse_size(last)
    factor = parse_size(factor_text) if factor_text else 2
    if begin < 1 or end < begin or factor < 2:
        raise ValueError(f"sizes {text!r}: expected FIRST..LAST with 1 <= FIRST <= LAST, and *FACTOR at least 2")
    sizes = []
    while begin <= end:
        sizes.append(begin)
        begin *= factor
    if sizes[-1] != end:
        sizes.append(end)
    return sizes


def format_size(size: int) -> str:
    """Returns a text such as 64 KiB; bytes if the size is not a multiple."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
