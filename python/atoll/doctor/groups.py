# SPDX-License-Identifier: Apache-2.0
"""The backend that serves each device type of a group, and the library inside each of its islands."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist


def island_rows(group: dist.ProcessGroup) -> list[dict[str, Any]]:
    """Returns for each island of `group` its label, its ranks, their device type and the library that reduces
    inside."""
    import atoll

    return [
        {"island": each.label, "ranks": each.ranks, "device": each.device, "library": each.library}
        for each in atoll.layout(group)
    ]


def backends_of(group: dist.ProcessGroup) -> dict[str, str]:
    """Returns the name of the backend that this rank's `group` uses, by device type."""
    found = {}
    for device in group._device_types:
        backend = group._get_backend(device)
        found[device.type] = getattr(backend, "wrapped_pg", backend).name()
    return found


def row(backends: Sequence[dict[str, str]], islands: list[dict[str, Any]]) -> dict[str, Any]:
    """Combines the ranks' answers about the default group: its device types with their backends and ranks."""
    devices: dict[tuple[str, str], list[int]] = {}
    for rank, found in enumerate(backends):
        for device, backend in found.items():
            devices.setdefault((device, backend), []).append(rank)
    rows = [{"device": device, "backend": backend, "ranks": ranks} for (device, backend), ranks in devices.items()]
    return {"group": "default", "ranks": len(backends), "backends": rows, "islands": islands}
