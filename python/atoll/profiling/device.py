# SPDX-License-Identifier: Apache-2.0
"""Measures the user's model on this device by batch, on all ranks at once, because they share buses and power."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from atoll.profiling.device_memory import fits, memory_used, peak_bytes, reset_peak
from atoll.profiling.forward import Forward, computes_alone, to_device, unwrapped
from atoll.profiling.isolation import Trace, uncompiled, without_trace
from atoll.profiling.power import EnergyMeter

WARM_UP, STEPS = 2, 5


@dataclass
class Measured:
    """The measurements of one batch size."""

    batch: int
    seconds: float  # forward and backward, the median of some steps
    peak_bytes: int = 0  # 0 if the device does not report it
    joules: float = 0.0  # of one step; 0 without a meter


@dataclass
class DeviceProfile:
    """The measurements of one rank for the planner."""

    device: str
    sizes: list[Measured] = field(default_factory=list)  # by ascending batch
    operations: float = 0.0  # floating-point operations per second at the largest size
    memory_used: int = 0
    latency: float = 0.0  # seconds of the smallest collective
    cap: int = 0  # samples that fit; 0: unknown
    too_large: int = 0  # the smallest tried batch that did not fit; 0: all did
    busy_watts: float = 0.0  # 0: not measured
    idle_watts: float = 0.0  # 0: not measured

    def points(self) -> list[tuple[float, float]]:
        return [(float(at.batch), at.seconds) for at in self.sizes]

    def watts(self) -> tuple[float, float] | None:
        """The watts while computing and while waiting; None if not measured."""
        if not self.busy_watts or not self.idle_watts:
            return None
        return max(self.busy_watts, self.idle_watts), self.idle_watts

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(text: dict[str, Any]) -> "DeviceProfile":
        return DeviceProfile(**{**text, "sizes": [Measured(**at) for at in text["sizes"]]})


def sizes_to_try(global_batch: int, ranks: int, cap: int | None) -> list[int]:
    """Returns three or four batches around an equal share, or below the cap if that is smaller."""
    share = max(1, global_batch // ranks)
    limit = min(global_batch, cap or global_batch)
    wanted = [share // 4, share // 2, share, share * 2]
    if limit <= share // 2:
        wanted = [limit // 4, limit // 2, limit]
    return sorted({min(max(1, size), limit) for size in wanted})


class _Trials:
    """The batches to measure: the planned ones in turn; after one that does not fit, others between it and those that
    do."""

    def __init__(self, planned: list[int]) -> None:
        self._planned = planned
        self.largest = 0  # the largest that fits
        self.too_large = 0  # the smallest that does not

    def next(self, place: int) -> int:
        if not self.too_large:
            return self._planned[place]
        if not self.largest:
            return max(1, self.too_large // 4)
        return max(self.largest, (self.largest + self.too_large) // 2)

    def note(self, size: int, fitted: bool) -> None:
        if fitted:
            self.largest = max(self.largest, size)
        else:
            self.too_large = min(size, self.too_large or size)


def profile_device(
    model: nn.Module, make_batch: Callable[[int], Any], sizes: list[int], *, forward: Forward, device: torch.device,
    together: Callable[[], object] = lambda: None, meter: EnergyMeter | None = None, accumulates: bool = False,
) -> DeviceProfile:  # fmt: skip
    """Measures each of `sizes`, or smaller ones if they do not fit in memory; the profile has no sizes if a single
    sample does not fit. `make_batch(size)` returns collated samples. `together()` is called before each size, so that
    all ranks start at once; all must pass equally many sizes. `accumulates`: gradients are kept from step to step. The
    model is left unchanged."""
    bare = unwrapped(model)
    profile = DeviceProfile(device=_device_name(device))
    trials = _Trials(sizes)

    with without_trace(bare, device, forward) as trace:

        def measure(size: int) -> None:
            batch = to_device(make_batch(size), device)
            measured = _measure(bare, batch, size, forward, device, meter, accumulates)
            measured.peak_bytes = max(0, measured.peak_bytes - trace.held_bytes(device))
            profile.sizes.append(measured)

        watch(trace, bare, partial(make_batch, min(sizes)), forward, device)
        place = 0
        while place < len(sizes) or (not trials.largest and trials.too_large > 1):
            size = trials.next(place)
            if place < len(sizes):
                together()
            if computes_alone(bare):
                trials.note(size, fits(partial(measure, size), device))
            else:
                measure(size)  # otherwise the other ranks would wait for a step that was given up
                trials.note(size, True)
            place += 1
        profile.sizes.sort(key=lambda at: at.batch)
        profile.too_large = trials.too_large
        if profile.sizes:
            batch = to_device(make_batch(trials.largest), device)
            profile.operations = _operations(bare, batch, forward) / profile.sizes[-1].seconds
    profile.memory_used = memory_used(device)
    if watts := [at.joules / at.seconds for at in profile.sizes if at.joules]:
        profile.busy_watts = statistics.median(watts)
    return profile


def _measure(
    model: nn.Module, batch: Any, size: int, forward: Forward, device: torch.device, meter: EnergyMeter | None,
    accumulates: bool,
) -> Measured:  # fmt: skip
    drop_gradients(model)
    reset_peak(device)
    seconds = []
    joules = 0.0
    for step in range(WARM_UP + STEPS):
        before = meter.joules() if meter else 0.0
        begin = time.perf_counter()
        one_step(model, batch, forward, accumulates)
        synchronize(device)
        if step >= WARM_UP:
            seconds.append(time.perf_counter() - begin)
            joules += meter.joules() - before if meter else 0.0
    return Measured(size, statistics.median(seconds), peak_bytes(device), joules / STEPS)


def one_step(model: nn.Module, batch: Any, forward: Forward, accumulates: bool = False) -> None:
    if not accumulates:
        drop_gradients(model)
    forward(model, batch).backward()  # type: ignore[no-untyped-call]


def watch(
    trace: Trace, model: nn.Module, make_batch: Callable[[], Any], forward: Forward, device: torch.device
) -> None:  # fmt: skip
    """Runs a step to record what the model writes besides its gradients. If it does not fit in memory, the next one
    will not either."""

    def step() -> None:
        with trace.watched():
            one_step(model, to_device(make_batch(), device), forward)
        synchronize(device)  # so that the step's memory is free

    if computes_alone(model):
        fits(step, device)
    elif trace.is_watched:
        step()
    drop_gradients(model)
    gc.collect()  # reference cycles may hold the device's memory


def drop_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _operations(model: nn.Module, batch: Any, forward: Forward) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with uncompiled(), FlopCounterMode(display=False) as counter:
        one_step(model, batch, forward)
    return float(counter.get_total_flops())


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(device)
