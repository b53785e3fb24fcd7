# SPDX-License-Identifier: Apache-2.0
"""How many samples fit into an accelerator's memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from atoll.profiling.device import DeviceProfile, one_step, synchronize
from atoll.profiling.forward import Forward, to_device, unwrapped, without_trace


def predicted_cap(points: list[tuple[int, int]], memory_bytes: int, margin: float) -> int:
    """The samples of one step that `memory_bytes` less `margin` of them hold, from peaks at two or more batches, taken
    as static + per_sample * batch. 0 where the peaks do not grow: then memory says nothing. At least 1 otherwise."""
    (small, low), (large, high) = min(points), max(points)
    if large <= small or high <= low:
        return 0
    per_sample = (high - low) / (large - small)
    static = low - per_sample * small
    return max(1, int((memory_bytes * (1 - margin) - static) / per_sample))


def confirmed_cap(
    model: nn.Module, batch_of: Callable[[int], Any], profile: DeviceProfile, forward: Forward, device: torch.device,
    margin: float, most: int,
) -> int:  # fmt: skip
    """The predicted cap, after one real step of that size; a tenth less as long as memory does not suffice. 0: not
    known, as on CPUs, or no limit below `most`."""
    peaks = [(at.batch, at.peak_bytes) for at in profile.sizes if at.peak_bytes]
    if len(peaks) < 2 or device.type == "cpu":
        return 0
    cap = predicted_cap(peaks, _memory_bytes(device), margin)
    if cap == 0 or cap >= most:
        return 0
    bare = unwrapped(model)
    with without_trace(bare, device):
        while cap > 1:
            try:
                one_step(bare, to_device(batch_of(cap), device), forward)
                synchronize(device)
                break
            except torch.OutOfMemoryError:
                cap = max(1, cap - max(1, cap // 10))
    return cap


def _memory_bytes(device: torch.device) -> int:
    """What this process may use: what is free, and what it has already."""
    module = torch.get_device_module(device)
    free, _total = module.mem_get_info(device)
    return int(free) + int(module.memory_allocated(device))
