# SPDX-License-Identifier: Apache-2.0
"""Profiles on disk, by hardware and model, so that the next run does not measure again."""

import contextlib
import functools
import hashlib
import inspect
import json
import os
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from atoll._processor import processor_name
from atoll.profiling.device import DeviceProfile
from atoll.profiling.device_memory import total_bytes
from atoll.profiling.forward import Forward

VERSION = 2
# What a simulated device's times depend on.
SIMULATED = ("ATOLL_SIM_MODEL", "ATOLL_SIM_SPEED", "ATOLL_SIM_BANDWIDTH", "ATOLL_SIM_VENDOR")


def folder() -> Path:
    """Returns ATOLL_CACHE, or else XDG's cache folder. Raises OSError if the user has no such folder."""
    if named := os.environ.get("ATOLL_CACHE"):
        return Path(named)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "atoll"
    try:
        return Path.home() / ".cache" / "atoll"
    except RuntimeError as error:
        raise FileNotFoundError(str(error)) from None


def fingerprint(
    model: nn.Module, device: torch.device, sizes: list[int], sample: Any, ranks_here: int, accumulates: bool = False,
    forward: Forward | None = None,
) -> str:  # fmt: skip
    """Returns a text that is equal if a measurement can be reused. It covers the device, versions, threads, the number
    of other ranks on the host, the model's layers and parameters and which of them are trained, autocast and
    recomputation, the code of the user's forward pass, whether gradients are kept, and the shape of a sample. It covers
    hardware, not rank numbers, which change between runs."""
    shapes = [(name, list(value.shape), str(value.dtype), value.requires_grad) for name, value in
              model.named_parameters()]  # fmt: skip
    layers = [
        (type(module).__qualname__, getattr(module, "gradient_checkpointing", None) is True)  # the name in transformers
        for module in model.modules()
    ]
    facts = {
        "version": VERSION, **conditions(device, ranks_here), "layers": layers, "parameters": shapes,
        "training": model.training, "sizes": sizes, "accumulates": accumulates, "autocast": _autocast(device),
        "forward": None if forward is None else _function(forward), "sample": _shape(sample),
    }  # fmt: skip
    text = json.dumps(facts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def conditions(device: torch.device, ranks_here: int) -> dict[str, Any]:
    """Returns what times depend on besides the model: hardware, versions, and the number of ranks on the host."""
    return {
        "device": _hardware(device), "torch": torch.__version__, "threads": torch.get_num_threads(),
        "ranks_here": ranks_here, "memory": total_bytes(device),
        "simulated": [os.environ.get(name) for name in SIMULATED],
    }  # fmt: skip


def load(name: str) -> DeviceProfile | None:
    """Returns the profile; None if there is none or it cannot be read."""
    text = read(name)
    try:
        return None if text is None else DeviceProfile.from_json(text)
    except (ValueError, KeyError, TypeError):
        return None


def save(name: str, profile: DeviceProfile) -> None:
    """Saves the profile. Errors are ignored, because they only cost measuring again."""
    write(name, profile.to_json())


def read(name: str) -> dict[str, Any] | None:
    """Returns what was written under this name; None if there is nothing or it cannot be read."""
    try:
        text = json.loads((folder() / "profiles" / f"{name}.json").read_text())
    except (OSError, ValueError):
        return None
    return text if isinstance(text, dict) else None


def write(name: str, text: dict[str, Any]) -> None:
    """Does `save` for any JSON value."""
    with contextlib.suppress(OSError):
        file = folder() / "profiles" / f"{name}.json"
        part = file.with_suffix(f".{os.getpid()}.part")
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps(text, indent=1) + "\n")
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def _autocast(device: torch.device) -> str | None:
    """Returns the autocast type if the loader is made inside torch.autocast."""
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return None
    return str(torch.get_autocast_dtype(device.type))


def _function(function: Any) -> list[Any]:
    """Returns a function's name and code, without what it calls and holds."""
    if isinstance(function, functools.partial):
        return ["partial", *_function(function.func)]
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", getattr(type(function).__call__, "__code__", None))
    return [name, None if code is None else _code(code)]


def _code(code: CodeType) -> list[Any]:
    """Returns code as JSON values that are the same in each run."""
    return [code.co_code.hex(), list(code.co_names), [_constant(value) for value in code.co_consts]]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return f"{processor_name()} x {len(os.sched_getaffinity(0))}"


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [list(value.shape), str(value.dtype)]
    if isinstance(value, dict):
        return {str(name): _shape(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shape(item) for item in value]
    return type(value).__name__
