# SPDX-License-Identifier: Apache-2.0
"""Determines how many samples fit into an accelerator's memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from atoll.profiling.device import DeviceProfile, drop_gradients, one_step, synchronize, watch
from atoll.profiling.device_memory import fits, memory_used, usable_bytes
from atoll.profiling.forward import Forward, computes_alone, to_device, unwrapped
from atoll.profiling.isolation import without_trace

STATES_PER_PARAMETER = 2  # of Adam


def predicted_cap(points: list[tuple[int, int]], memory_bytes: int, margin: float, reserve: int = 0) -> int:
    """Returns the samples per step that fit in `memory_bytes`, minus the share `margin` and minus `reserve` bytes, from
    the peaks at two or more batches, modelled as static + per_sample * batch. 0 if the peaks do not grow, so that
    memory sets no limit; at least 1 otherwise."""
    (small, low), (large, high) = min(points), max(points)
    if large <= small or high <= low:
        return 0
    per_sample = (high - low) / (large - small)
    static = low - per_sample * small
    return max(1, int((memory_bytes * (1 - margin) - reserve - static) / per_sample))


def optimizer_bytes(model: nn.Module) -> int:
    """Returns the bytes that an optimizer such as Adam keeps for the trainable parameters that this rank holds."""
    held = [parameter for parameter in model.parameters() if parameter.requires_grad]
    own = [getattr(parameter, "_local_tensor", parameter) for parameter in held]
    return STATES_PER_PARAMETER * sum(parameter.numel() * parameter.element_size() for parameter in own)


def confirmed_cap(
    model: nn.Module, batch_of: Callable[[int], Any], profile: DeviceProfile, forward: Forward, device: torch.device, *,
    margin: float, reserve: int, most: int, accumulates: bool = False,
) -> int:  # fmt: skip
    """Returns the samples per step that fit: the predicted number, confirmed by one real step of that size, and reduced
    by a tenth until it fits. `reserve`: bytes that the training will need besides, which this step holds. 0: unknown,
    as on CPUs, or no limit below `most`. Raises ValueError if not even one sample fits."""
    usable = usable_bytes(device)
    grown = memory_used(device) - profile.memory_used  # since the peaks were measured, perhaps in another run
    cap = _promised(profile, max(1, usable - grown) if usable else 0, margin, reserve)
    if cap == 0 or cap >= 2 * most:
        return 0
    cap = min(cap, most)
    bare = unwrapped(model)
    if not computes_alone(bare):
        return cap if cap < most else 0

    def step() -> None:
        held = torch.empty(max(0, reserve - trace.held_bytes(device)), dtype=torch.uint8, device=device)
        batch = to_device(batch_of(cap), device)
        drop_gradients(bare)
        for _ in range(2 if accumulates else 1):
            one_step(bare, batch, forward, accumulates)
        synchronize(device)
        del held

    with without_trace(bare, device, forward) as trace:
        watch(trace, bare, partial(batch_of, min(cap, profile.sizes[0].batch)), forward, device)
        while not fits(step, device):
            if cap == 1:
                raise ValueError(too_small(device, reserve))
            cap = max(1, cap - max(1, cap // 10))
    return cap if cap < most else 0


def too_small(device: torch.device, reserve: int) -> str:
    """Returns the error for a single sample that does not fit, with the way out."""
    return (
        f"one sample's step does not fit into the memory of {device}: {usable_bytes(device) >> 20} MiB can be used, "
        f"{reserve >> 20} MiB of them are kept for the optimizer's state: free memory, leave this rank out, or pass "
        "Settings(optimizer_bytes=...) if the optimizer needs less"
    )


def _promised(profile: DeviceProfile, memory_bytes: int, margin: float, reserve: int) -> int:
    """Returns the samples to try, from the measurements; 0: no limit. `memory_bytes` is 0 if unknown."""
    peaks = {(at.batch, at.peak_bytes) for at in profile.sizes if at.peak_bytes}
    below = max(1, profile.too_large - 1) if profile.too_large else 0
    cap = predicted_cap(sorted(peaks), memory_bytes, margin, reserve) if len(peaks) > 1 and memory_bytes else 0
    return min(cap, below) if cap and below else cap or below
