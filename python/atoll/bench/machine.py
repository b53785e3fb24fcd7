# SPDX-License-Identifier: Apache-2.0
"""The machine that measurements run on, and whether other processes use it."""

import os
import platform
import time
from pathlib import Path

from atoll._processor import processor_name

BUSY_CORES = 0.25  # cores used by other processes, above which times mean nothing
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, str | int | float]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def place() -> str:
    """Returns a text that is equal for processes that can share memory: machine and network namespace, or the label in
    ATOLL_HOST."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return os.environ.get("ATOLL_HOST") or f"{boot} {Path('/proc/self/ns/net').readlink()}"


def busy_seconds() -> float:
    """Returns the processor time used since the machine started, including time taken by a hypervisor."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _wait, irq, soft_irq, steal = fields
    return (user + nice + system + irq + soft_irq + steal) / _TICKS_PER_SECOND


def own_seconds() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


class OthersLoad:
    """Measures how many cores other processes have used since its creation. The caller passes the processor time that
    was its own."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._busy = busy_seconds()

    def cores(self, own: float) -> float:
        elapsed = time.monotonic() - self._begin
        return max(0.0, (busy_seconds() - self._busy - own) / elapsed) if elapsed > 0 else 0.0


def cores_used_by_others(seconds: float = 1.0) -> float:
    """Sleeps for `seconds` and returns how many cores were in use during that time."""
    load = OthersLoad()
    own = own_seconds()
    time.sleep(seconds)
    return load.cores(own_seconds() - own)
