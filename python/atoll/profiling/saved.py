# SPDX-License-Identifier: Apache-2.0
"""Profiles on disk, by hardware and model, so that the next run need not measure again."""

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atoll.profiling.device import DeviceProfile
from atoll.profiling.room import total_bytes

VERSION = 2
SIMULATED = ("ATOLL_SIM_SPEED", "ATOLL_SIM_BANDWIDTH", "ATOLL_SIM_VENDOR")  # what a simulated device's times depend on


def folder() -> Path:
    """ATOLL_CACHE, else XDG's cache folder."""
    if named := os.environ.get("ATOLL_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll"


def fingerprint(
    model: nn.Module, device: torch.device, sizes: list[int], sample: Any, ranks_here: int, accumulates: bool = False
) -> str:
    """Equal where a measurement can be used again: device, versions, threads, ranks beside this one on its host, the
    model's layers and parameters, whether gradients stay, and the shape of a sample. Hardware counts, not ranks: those
    change between runs."""
    shapes = [(name, list(value.shape), str(value.dtype)) for name, value in model.named_parameters()]
    layers = [type(module).__qualname__ for module in model.modules()]
    facts = {
        "version": VERSION, "device": _hardware(device), "torch": torch.__version__, "threads": torch.get_num_threads(),
        "ranks_here": ranks_here, "layers": layers, "parameters": shapes, "training": model.training, "sizes": sizes,
        "accumulates": accumulates, "memory": total_bytes(device),
        "sample": _shape(sample), "simulated": [os.environ.get(name) for name in SIMULATED],
    }  # fmt: skip
    text = json.dumps(facts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def load(name: str) -> DeviceProfile | None:
    """None when there is none, or none that can be read."""
    try:
        return DeviceProfile.from_json(json.loads((folder() / "profiles" / f"{name}.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(name: str, profile: DeviceProfile) -> None:
    """Nothing happens where the folder cannot be written: measuring again is all that is lost."""
    file = folder() / "profiles" / f"{name}.json"
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(profile.to_json(), indent=1) + "\n")
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return f"{_processor()} x {len(os.sched_getaffinity(0))}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [list(value.shape), str(value.dtype)]
    if isinstance(value, dict):
        return {str(name): _shape(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shape(item) for item in value]
    return type(value).__name__
