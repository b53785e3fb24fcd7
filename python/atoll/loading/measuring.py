# SPDX-License-Identifier: Apache-2.0
"""Measures this rank's device with the user's model, together with the other ranks."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from atoll.loading.exchange import Exchange
from atoll.loading.settings import Settings
from atoll.profiling import saved
from atoll.profiling.device import DeviceProfile, profile_device, sizes_to_try
from atoll.profiling.forward import default_forward
from atoll.profiling.memory import confirmed_cap
from atoll.profiling.power import find_meter

LATENCY_CALLS = 9


def measure(
    model: nn.Module, batch_of: Callable[[int], Any], exchange: Exchange, settings: Settings, global_batch: int,
    most: int | None,
) -> DeviceProfile:  # fmt: skip
    """Collective. A profile of an earlier run is taken when every rank has one: all measure at once, or none."""
    device = next(model.parameters()).device
    sizes = sizes_to_try(global_batch, exchange.ranks, most)
    hosts = exchange.facts(_host())
    name = saved.fingerprint(model, device, sizes, batch_of(1), hosts.count(_host()))
    known = saved.load(name) if settings.reuse else None
    if all(have == [1.0] for have in exchange.numbers([1.0 if known else 0.0])):
        assert known is not None
        return known
    count = int(max(number for (number,) in exchange.numbers([float(len(sizes))])))
    sizes += sizes[-1:] * (count - len(sizes))  # all ranks begin each of their sizes together
    forward = settings.forward or default_forward
    profile = profile_device(
        model, batch_of, sizes, forward=forward, device=device, together=lambda: exchange.numbers([0.0]),
        meter=find_meter(device),
    )  # fmt: skip
    cap = confirmed_cap(model, batch_of, profile, forward, device, settings.memory_margin, most or global_batch)
    profile = replace(profile, cap=cap, latency=_latency(exchange))
    saved.save(name, profile)
    return profile


def _host() -> str:
    import socket

    return socket.gethostname()


def _latency(exchange: Exchange) -> float:
    """Seconds of the smallest exchange with all ranks."""
    seconds = []
    for _ in range(LATENCY_CALLS):
        begin = time.perf_counter()
        exchange.numbers([0.0])
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
