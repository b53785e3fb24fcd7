# SPDX-License-Identifier: Apache-2.0
"""The time that Atoll adds to the library that does the work: both over the same ranks, paired in the same
processes."""

from typing import Any

from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size, parse_sizes
from contenders import Place, TorchRanks
from pairs import compare_pairs, over_launches
from results import Settings, microseconds, say, table

LIBRARIES = {"gloo": ("cpu", {"ATOLL_INNER": "cpu:gloo"}), "simccl": ("sim", {})}
LAUNCHES, SECONDS = 7, 2.0  # for each size
SIZES = parse_sizes("4,256,4K,64K,1M,4M,16M,64M")


def places(device: str, settings: dict[str, str], layout: str = "AA") -> list[Place]:
    """One rank per letter, which names its island."""
    return [
        Place(environment=(("ATOLL_DEVICE", device), ("ATOLL_ISLAND", island), *settings.items())) for island in layout
    ]


def measure(settings: Settings) -> list[dict[str, Any]]:
    return [row for library in LIBRARIES for row in _measure(settings, library)]


def _measure(settings: Settings, library: str) -> list[dict[str, Any]]:
    device, environment = LIBRARIES[library]
    sizes, seconds = (SIZES[:2], 0.05) if settings.quick else (SIZES, SECONDS)
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
    for _ in range(settings.rounds(LAUNCHES)):
        with TorchRanks(places(device, environment), ["atoll", "inner"]) as ranks:
            for size in sizes:
                found[size].append(compare_pairs(ranks, ("atoll", "inner"), Problem("all_reduce", size), seconds))
    rows = [{"library": library, **over_launches(of_size)} for of_size in found.values()]
    for row in rows:
        say(f"{library}, {format_size(row['bytes'])}: {added_text(row['added_us'])} more")
    return rows


def added_text(added: dict[str, float]) -> str:
    return f"{added['median']:.1f} us ({added['low']:.1f} to {added['high']:.1f})"


def report(rows: list[dict[str, Any]]) -> str:
    text = (
        "## Added time per call\n\nTwo ranks in one island. `all_reduce` through Atoll, which leaves it to the "
        "island's library, and through that library alone: call by call in turn in the same processes and on the same "
        "buffer, each first in every other pair; on `sim` a call ends when the device is done. The added time is the "
        f"median difference of a launch of the ranks; of {LAUNCHES} launches the median and its 95 % interval. What "
        "Atoll does for such a call does not depend on its size, so where calls take milliseconds the interval "
        "only says how much of that can be seen.\n\n"
    )
    cells = [
        [row["library"], format_size(row["bytes"]), *(microseconds(time) for time in row["us"].values()),
         added_text(row["added_us"])]
        for row in rows
    ]  # fmt: skip
    return text + table(["library", "size", "atoll over it", "alone", "added"], cells)
