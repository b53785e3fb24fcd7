# SPDX-License-Identifier: Apache-2.0
"""How long the user's model takes on this device, by batch; all ranks at once, because they share buses and power."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from atoll.profiling.forward import Forward, to_device, unwrapped, without_trace
from atoll.profiling.power import EnergyMeter

WARM_UP, STEPS = 2, 5
IDLE_SECONDS = 0.2  # for which a meter sees the device wait


@dataclass
class Measured:
    """One batch size."""

    batch: int
    seconds: float  # forward and backward, the median of some steps
    peak_bytes: int = 0  # 0 where the device does not say
    joules: float = 0.0  # of one step; 0 where nothing measures it


@dataclass
class DeviceProfile:
    """What the planner must know of one rank."""

    device: str
    sizes: list[Measured] = field(default_factory=list)
    operations: float = 0.0  # floating-point operations per second at the largest size
    memory_used: int = 0
    latency: float = 0.0  # seconds of the smallest collective
    cap: int = 0  # samples that fit; 0: not known
    busy_watts: float = 0.0  # 0: nothing measured it
    idle_watts: float = 0.0  # measured where busy_watts is

    def points(self) -> list[tuple[float, float]]:
        return [(float(at.batch), at.seconds) for at in self.sizes]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(text: dict[str, Any]) -> "DeviceProfile":
        return DeviceProfile(**{**text, "sizes": [Measured(**at) for at in text["sizes"]]})


def sizes_to_try(global_batch: int, ranks: int, cap: int | None) -> list[int]:
    """Three or four batches around an equal share, none above the cap."""
    share = max(1, global_batch // ranks)
    wanted = [share // 4, share // 2, share, share * 2]
    limit = min(global_batch, cap or global_batch)
    return sorted({min(max(1, size), limit) for size in wanted})


def profile_device(
    model: nn.Module, make_batch: Callable[[int], Any], sizes: list[int], *, forward: Forward, device: torch.device,
    together: Callable[[], object] = lambda: None, meter: EnergyMeter | None = None,
) -> DeviceProfile:  # fmt: skip
    """Measures each of `sizes`. `make_batch(size)` gives collated samples; `together()` is called before each size, for
    all ranks to begin at once: all must give equally many sizes. The model is left as it was."""
    bare = unwrapped(model)
    profile = DeviceProfile(device=_device_name(device))
    idle_watts = _idle_watts(meter) if meter else 0.0
    with without_trace(bare, device):
        for size in sizes:
            batch = to_device(make_batch(size), device)
            together()
            profile.sizes.append(_measure(bare, batch, size, forward, device, meter))
        profile.operations = _operations(bare, batch, forward) / profile.sizes[-1].seconds
    profile.memory_used = memory_used(device)
    if watts := [at.joules / at.seconds for at in profile.sizes if at.joules]:
        profile.busy_watts = statistics.median(watts)
        profile.idle_watts = min(idle_watts, profile.busy_watts)
    return profile


def _idle_watts(meter: EnergyMeter) -> float:
    before, begin = meter.joules(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    return (meter.joules() - before) / (time.perf_counter() - begin)


def _measure(
    model: nn.Module, batch: Any, size: int, forward: Forward, device: torch.device, meter: EnergyMeter | None
) -> Measured:
    reset_peak(device)
    seconds = []
    joules = 0.0
    for step in range(WARM_UP + STEPS):
        before = meter.joules() if meter else 0.0
        begin = time.perf_counter()
        one_step(model, batch, forward)
        synchronize(device)
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
            joules += meter.joules() - before if meter else 0.0
    return Measured(size, statistics.median(seconds), peak_bytes(device), joules / STEPS)


def one_step(model: nn.Module, batch: Any, forward: Forward) -> None:
    for parameter in model.parameters():
        parameter.grad = None
    forward(model, batch).backward()  # type: ignore[no-untyped-call]


def _operations(model: nn.Module, batch: Any, forward: Forward) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        one_step(model, batch, forward)
    return float(counter.get_total_flops())


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _memory_module(device: torch.device) -> Any:
    """What knows the memory of the device's kind; None where PyTorch has none."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    return module if hasattr(module, "max_memory_allocated") else None


def reset_peak(device: torch.device) -> None:
    if (module := _memory_module(device)) is not None:
        module.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    module = _memory_module(device)
    return 0 if module is None else int(module.max_memory_allocated(device))


def memory_used(device: torch.device) -> int:
    """Of the device, or of this process where it computes on the CPU."""
    module = _memory_module(device)
    if module is not None:
        return int(module.memory_allocated(device))
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(device)
