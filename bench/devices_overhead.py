# SPDX-License-Identifier: Apache-2.0
"""What Atoll adds to the library that does the work: both over the same ranks, paired in the same processes."""

from typing import Any

from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size, parse_sizes
from compare import compare
from contenders import Contender, Place, TorchRanks
from intervals import median_interval
from results import Settings, microseconds, say, table

LIBRARIES = {"gloo": ("cpu", {"ATOLL_INNER": "cpu:gloo"}), "simccl": ("sim", {})}
SIZES = parse_sizes("4,256,4K,64K,1M,4M,16M,64M")


def places(device: str, settings: dict[str, str], layout: str = "AA") -> list[Place]:
    """One rank per letter: its island."""
    return [
        Place(environment=(("ATOLL_DEVICE", device), ("ATOLL_ISLAND", island), *settings.items())) for island in layout
    ]


def measure(settings: Settings) -> list[dict[str, Any]]:
    rows = []
    for library, (device, environment) in LIBRARIES.items():
        with TorchRanks(places(device, environment), ["atoll", "inner"]) as ranks:
            contenders: dict[str, Contender] = {name: ranks.contender(name, "own") for name in ("atoll", "inner")}
            for size in SIZES[:2] if settings.quick else SIZES:
                row = compare(contenders, Problem("all_reduce", size), settings.rounds(61), turns=True)
                pairs = zip(*(row["us"][name]["rounds"] for name in ("atoll", "inner")), strict=True)
                row |= {"library": library, "added_us": median_interval([ours - alone for ours, alone in pairs])}
                rows.append(row)
                say(f"{library}, {format_size(size)}: {added_text(row['added_us'])} more")
    return rows


def added_text(added: dict[str, float]) -> str:
    return f"{added['median']:.1f} us ({added['low']:.1f} to {added['high']:.1f})"


def report(rows: list[dict[str, Any]]) -> str:
    text = (
        "## Added time per call\n\nTwo ranks in one island. `all_reduce` through Atoll, which leaves it to the "
        "island's library, and through that library alone, in turn in the same processes; each of the two begins every "
        "other round. The added time is the median of the differences between the two blocks of a round, divided by "
        "their calls; in brackets its 95 % interval. Where calls take milliseconds the interval says how much of that "
        "can be seen.\n\n"
    )
    cells = [
        [row["library"], format_size(row["bytes"]), *(microseconds(row["us"][name]["median"]) for name in row["us"]),
         added_text(row["added_us"])]
        for row in rows
    ]  # fmt: skip
    return text + table(["library", "size", "atoll over it", "alone", "added"], cells)
