# SPDX-License-Identifier: Apache-2.0
"""Measures this rank's device with the user's model, at the same time as the other ranks."""

import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from atoll.loading.exchange import Exchange
from atoll.loading.settings import Settings
from atoll.profiling import stored_profiles
from atoll.profiling.device import DeviceProfile, profile_device, sizes_to_try
from atoll.profiling.forward import Forward, default_forward
from atoll.profiling.memory import confirmed_cap, optimizer_bytes, too_small
from atoll.profiling.power import EnergyMeter, find_meter

LATENCY_CALLS = 9
IDLE_SECONDS = 0.3


def measure(
    model: nn.Module, batch_of: Callable[[int], Any], exchange: Exchange, settings: Settings, global_batch: int,
    most: int | None, accumulates: bool,
) -> DeviceProfile:  # fmt: skip
    """Measures the device. Collective. `most`: the maximum number of samples per forward pass on this rank;
    `accumulates`: a step may have several passes. Profiles of an earlier run are used if every rank has one: all ranks
    measure, or none. What fits is confirmed in any case, because free memory may differ. Raises ValueError on all ranks
    if one cannot hold a single sample."""
    device, forward = exchange.device, settings.forward or default_forward
    sizes = sizes_to_try(global_batch, exchange.ranks, most)
    hosts = exchange.facts(socket.gethostname())
    ranks_here = hosts.count(hosts[exchange.rank])

    def own() -> tuple[str, dict[str, object]]:
        sample = batch_of(1)  # may raise
        return stored_profiles.fingerprint(model, device, sizes, sample, ranks_here, accumulates, settings.forward), {}

    name = exchange.agree("atoll.DataLoader", own, "")
    known = stored_profiles.load(name) if settings.reuse else None
    if not all(have == [1.0] for have in exchange.numbers([1.0 if known else 0.0])):
        known = None
    reserve = optimizer_bytes(model) if settings.optimizer_bytes is None else settings.optimizer_bytes
    meter = None if known else find_meter(device, ranks_here=ranks_here)
    profile = known or _measured(model, batch_of, exchange, forward, sizes, meter, accumulates)
    problem = ""
    try:
        if not profile.sizes:
            raise ValueError(too_small(device, reserve))
        cap = confirmed_cap(
            model, batch_of, profile, forward, device, margin=settings.memory_margin, reserve=reserve,
            most=most or global_batch, accumulates=accumulates,
        )  # fmt: skip
        profile = replace(profile, cap=cap)
    except ValueError as error:
        problem = str(error)
    exchange.refuse(problem)
    if known is None:
        stored_profiles.save(name, profile)
    return profile


def _measured(
    model: nn.Module, batch_of: Callable[[int], Any], exchange: Exchange, forward: Forward, sizes: list[int],
    meter: EnergyMeter | None, accumulates: bool,
) -> DeviceProfile:  # fmt: skip
    count = int(max(number for (number,) in exchange.numbers([float(len(sizes))])))
    planned = sizes + sizes[-1:] * (count - len(sizes))  # all ranks start each size together
    idle = _idle_watts(exchange, meter)
    profile = profile_device(
        model, batch_of, planned, forward=forward, device=exchange.device, together=lambda: exchange.numbers([0.0]),
        meter=meter, accumulates=accumulates,
    )  # fmt: skip
    return replace(profile, idle_watts=idle, latency=_latency(exchange))


def _idle_watts(exchange: Exchange, meter: EnergyMeter | None) -> float:
    """Returns the watts while no rank computes; 0 without a meter. Returns at once if no rank has a meter."""
    if not any(have for (have,) in exchange.numbers([0.0 if meter is None else 1.0])):
        return 0.0
    before, begin = meter.joules() if meter else 0.0, time.perf_counter()
    time.sleep(IDLE_SECONDS)
    after, end = meter.joules() if meter else 0.0, time.perf_counter()
    exchange.numbers([0.0])
    return (after - before) / (end - begin)


def _latency(exchange: Exchange) -> float:
    """Returns the seconds of the smallest exchange among all ranks."""
    seconds = []
    for _ in range(LATENCY_CALLS):
        begin = time.perf_counter()
        exchange.numbers([0.0])
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
