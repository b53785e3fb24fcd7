# SPDX-License-Identifier: Apache-2.0
"""Reads the energy that a device has used, if there is a meter."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

RAPL = Path("/sys/class/powercap")
HWMON = Path("/sys/class/hwmon")


class EnergyMeter:
    """Joules since some moment: from a counter, or from `watts`, sampled and integrated between readings. A meter that
    several ranks share is divided by their number."""

    def __init__(self, source: str, *, joules: Callable[[], float] | None = None,
                 watts: Callable[[], float] | None = None, ranks: int = 1) -> None:  # fmt: skip
        self.source = source
        self._joules, self._watts, self._ranks = joules, watts, ranks
        self._used, self._at = 0.0, time.monotonic()

    def joules(self) -> float:
        if self._joules is not None:
            return self._joules() / self._ranks
        assert self._watts is not None
        now = time.monotonic()
        self._used += self._watts() * (now - self._at)
        self._at = now
        return self._used / self._ranks


def find_meter(
    device: torch.device, *, ranks_here: int = 1, rapl: Path = RAPL, hwmon: Path = HWMON
) -> EnergyMeter | None:
    """Returns the best meter for this device: NVML for CUDA, RAPL for CPUs, then a board's power sensor (hwmon). The
    latter two measure the whole host, of which a rank's part is one of `ranks_here`. None without a readable meter:
    then watts must be given."""
    if device.type == "cuda":
        return _nvml(device)
    if device.type == "cpu":
        return _rapl(rapl, ranks_here) or _hwmon(hwmon, ranks_here)
    return None


def _nvml(device: torch.device) -> EnergyMeter | None:
    try:
        torch.cuda.power_draw(device)
    except Exception:  # pynvml is missing, or the driver does not report energy
        return None
    return EnergyMeter("NVML", watts=lambda: torch.cuda.power_draw(device) * 1e-3)


def _rapl(root: Path, ranks: int) -> EnergyMeter | None:
    """Returns a meter of whole packages, whose counters wrap around."""
    zones = [
        zone for zone in sorted(root.glob("*-rapl:*")) if zone.name.count(":") == 1 and _readable(zone / "energy_uj")
    ]
    if not zones:
        return None
    counters = [_Counter(zone) for zone in zones]
    return EnergyMeter("RAPL", joules=lambda: sum(counter.joules() for counter in counters), ranks=ranks)


class _Counter:
    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = int((zone / "max_energy_range_uj").read_text())
        self._last, self._total = int(self._file.read_text()), 0

    def joules(self) -> float:
        now = int(self._file.read_text())
        self._total += (now - self._last) % (self._range + 1)
        self._last = now
        return self._total * 1e-6


def _hwmon(root: Path, ranks: int) -> EnergyMeter | None:
    for name in ("power1_average", "power1_input"):
        for file in sorted(root.glob(f"*/{name}")):
            if _readable(file):
                return EnergyMeter(f"hwmon {file.parent.name}", watts=partial(_watts, file), ranks=ranks)
    return None


def _watts(file: Path) -> float:
    return int(file.read_text()) * 1e-6


def _readable(file: Path) -> bool:
    try:
        int(file.read_text())
    except (OSError, ValueError):
        return False
    return True
