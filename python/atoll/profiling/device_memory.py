# SPDX-License-Identifier: Apache-2.0
"""Queries an accelerator's memory, and runs steps that may not fit in it."""

import gc
from collections.abc import Callable
from typing import Any

import torch


def _memory_module(device: torch.device) -> Any:
    """Returns the module with the memory functions of the device's type; None if PyTorch has none."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    return module if hasattr(module, "max_memory_allocated") else None


def reset_peak(device: torch.device) -> None:
    if (module := _memory_module(device)) is not None:
        module.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    module = _memory_module(device)
    return 0 if module is None else int(module.max_memory_allocated(device))


def memory_used(device: torch.device) -> int:
    """Returns the used bytes of the device, or of this process on the CPU."""
    module = _memory_module(device)
    if module is not None:
        return int(module.memory_allocated(device))
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def usable_bytes(device: torch.device) -> int:
    """Returns the bytes that this process may use: free memory plus what it already holds, and on CUDA at most the
    fraction that was set. 0 if the device does not report it."""
    module = _memory_module(device)
    if module is None or not hasattr(module, "mem_get_info"):
        return 0
    free, total = module.mem_get_info(device)
    held = getattr(module, "memory_reserved", module.memory_allocated)(device)
    fraction = getattr(module, "get_per_process_memory_fraction", lambda _device: 1.0)(device)
    return min(int(free) + int(held), int(total * fraction))


def total_bytes(device: torch.device) -> int:
    """Returns the size of the device's memory; 0 if the device does not report it."""
    module = _memory_module(device)
    return int(module.mem_get_info(device)[1]) if hasattr(module, "mem_get_info") else 0


def fits(step: Callable[[], object], device: torch.device) -> bool:
    """Runs the step, and returns whether it fits in the device's memory. If it does not, its memory is released."""
    try:
        step()
    except torch.OutOfMemoryError:
        pass  # until here the error holds what the step has allocated
    else:
        return True
    gc.collect()  # an error in a backward pass leaves cycles
    empty_cache = getattr(_memory_module(device), "empty_cache", None)
    if empty_cache is not None:
        empty_cache()
    return False
