# SPDX-License-Identifier: Apache-2.0
"""The resources of processes: memory, descriptors, threads, children."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    """The resources of one process at one moment."""

    mebibytes: float  # resident
    descriptors: int  # -1: not readable, as for a worker in its sandbox unless the tests are root
    threads: int


def held(pid: int) -> Held:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        descriptors = -1
    return Held(int(fields["VmRSS"].split()[0]) / 1024, descriptors, int(fields["Threads"]))


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # it has ended
        state, parent = text.rpartition(")")[2].split()[:2]  # the name before it may contain anything
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def check_growth(what: str, before: Held, after: Held, mebibytes: float, descriptors: int = 0) -> None:
    """Checks that the process holds no more than before, apart from these allowances."""
    told = f"{what}: {before} has become {after}"
    assert after.mebibytes - before.mebibytes <= mebibytes, told
    assert after.descriptors - before.descriptors <= descriptors, told
    assert after.threads <= before.threads, told
