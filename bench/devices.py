# SPDX-License-Identifier: Apache-2.0
"""Islands of devices and their libraries: what Atoll adds to a call inside an island, and how fast it is between
islands. Needs root."""

from typing import Any

import devices_fsdp
import devices_overhead
import devices_staging
from results import Settings

TITLE = "unlike devices: over a library, between islands, against the relay"
PARTS = {
    "overhead": devices_overhead,
    "staging": devices_staging,
    "fsdp": devices_fsdp,
}


def measure(settings: Settings) -> dict[str, Any]:
    return {name: part.measure(settings) for name, part in PARTS.items()}


def report(document: dict[str, Any]) -> str:
    return "".join(part.report(document[name]) for name, part in PARTS.items())
