# SPDX-License-Identifier: Apache-2.0
"""Rates of links as text: 93M is 93 Mbit/s."""

import re

_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_RATE = re.compile(r"([0-9]*\.?[0-9]+)([kKMG]?)(?:bit/s|bps)?")


def bytes_per_second(text: str) -> float:
    """Parses bits per second with a decimal unit. Raises ValueError that shows the format."""
    match = _RATE.fullmatch(text.strip())
    rate = float(match[1]) * _UNITS[match[2].replace("K", "k")] / 8 if match else 0.0
    if rate <= 0:
        raise ValueError(f"invalid rate {text!r}: give bits per second above 0, such as 93M or 1.2G")
    return rate


def rate_text(rate: float) -> str:
    """Formats bytes per second as "93 Mbit/s"."""
    bits = rate * 8
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= scale:
            return f"{bits / scale:.4g} {unit}"
    return f"{bits:.4g} bit/s"


def bytes_text(count: float) -> str:
    """Formats a number of bytes in decimal units: "150.5 kB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.4g} B"
