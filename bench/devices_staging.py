# SPDX-License-Identifier: Apache-2.0
"""all_reduce between islands of devices: copies, bridge and copies back against the slowest of the three."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size
from bridge import rate_text
from compare import compare, spread
from contenders import Contender, Place, TorchRanks
from library import late_text, oversubscribed
from netns import ShapedLink
from results import Settings, microseconds, ratio_text, say, table

SIZE = 64 << 20
DEVICES = (("cpu", "sim"), ("sim", "sim"))
LINK = 500_000_000  # bits per second: slow enough for this machine to simulate the copies as well
LINK_BYTES = LINK // 8


@dataclass(frozen=True)
class Case:
    """Copies modelled at `copy_bytes` a second per direction, and a link shaped to `rate` bits a second (0: shared
    memory). PCIe 4 x16 copies 25 GB/s: 20 times what 10 Gbit/s Ethernet carries, 8 times what 25 Gbit/s does, and as
    much as 200 Gbit/s InfiniBand."""

    name: str
    rate: int
    copy_bytes: int


CASES = (
    Case("PCIe 4 x16 : 10 GbE", LINK, 20 * LINK_BYTES),
    Case("PCIe 4 x16 : 25 GbE", LINK, 8 * LINK_BYTES),
    Case("PCIe 4 x16 : 200 Gbit/s InfiniBand", LINK, LINK_BYTES),
    Case("copies slower than the bridge", 0, 500_000_000),
    Case("one host, the fastest copies that two processors keep", 0, 1_000_000_000),
)


def measure(settings: Settings) -> list[dict[str, Any]]:
    if os.geteuid() != 0:
        raise RuntimeError("a shaped link needs root: run this scenario as root")
    wanted = [(case, devices) for case in CASES for devices in DEVICES]
    if settings.quick:
        wanted = [(CASES[0], DEVICES[0]), (CASES[-1], DEVICES[1])]
    return [_measure(settings, case, devices) for case, devices in wanted]


def _measure(settings: Settings, case: Case, devices: tuple[str, ...]) -> dict[str, Any]:
    size = 1 << 20 if settings.quick else SIZE
    with ExitStack() as stack:
        store, places = None, [Place(environment=(("ATOLL_ISLAND", island),)) for island in "AB"]
        if case.rate:
            link = stack.enter_context(ShapedLink(case.rate))
            store, places = link.store, link.places("AB")
        places = [_on(device, case, place) for device, place in zip(devices, places, strict=True)]
        ranks = stack.enter_context(TorchRanks(places, ["atoll", "relay"], store))
        contenders: dict[str, Contender] = {name: ranks.contender(name, "own") for name in ("atoll", "relay")}
        contenders["bridge"] = ranks.contender("atoll", "cpu", arena=not case.rate)
        seconds = 0.02 if settings.quick else 0.5
        row = compare(contenders, Problem("all_reduce", size), settings.rounds(9), block_seconds=seconds, turns=True)
        row["oversubscribed"] = oversubscribed(ranks)
    row |= {"case": case.name, "devices": list(devices), "rate": case.rate, "copy_bytes_s": case.copy_bytes}
    row |= of_slowest(row)
    row["most_to_gain"] = row["us"]["relay"]["median"] / max(row["copy_us"], row["us"]["bridge"]["median"])
    say(f"{case.name}, {' + '.join(devices)}: {row['fraction']['median']:.0%} of {row['slowest']}")
    return row


def _on(device: str, case: Case, place: Place) -> Place:
    more = (("ATOLL_DEVICE", device), ("ATOLL_SIM_BANDWIDTH", str(case.copy_bytes)))
    return Place(place.prefix, (*place.environment, *more))


def of_slowest(row: dict[str, Any]) -> dict[str, Any]:
    """Returns, round by round, the time of the slowest stage alone as a share of Atoll's time for all stages."""
    copy_us = row["bytes"] / row["copy_bytes_s"] * 1e6
    times = row["us"]
    pairs = zip(times["atoll"]["rounds"], times["bridge"]["rounds"], strict=True)
    fraction = spread([max(copy_us, bridge) / ours for ours, bridge in pairs])
    slowest = "the copies" if copy_us > times["bridge"]["median"] else "the bridge"
    return {"copy_us": copy_us, "slowest": slowest, "fraction": fraction}


def report(rows: list[dict[str, Any]]) -> str:
    text = (
        f"\n## Between islands of devices\n\nall_reduce of {format_size(rows[0]['bytes'])} (float32 sum) between two "
        "islands of one rank each. A tensor on `sim` is copied to the host at a modelled rate, crosses the bridge and "
        "is copied back; the rates of copies and bridge relate as the case says. The slowest stage is the longer of: "
        "the bytes at the modelled copy rate (both directions work at once), and Atoll's all_reduce of the same bytes "
        "on CPU tensors over the same link, in the same run. The relay is the baseline ATOLL_BRIDGE=relay. Modelled "
        "device time, real bytes.\n\n"
    )
    titles = ["case", "devices", "copies", "bridge", "copy alone", "bridge alone", "atoll", "of the slowest stage"]
    cells = []
    for row in rows:
        rate = rate_text(row["rate"]) if row["rate"] else "shared memory"
        cell = [row["case"], " + ".join(row["devices"]), f"{row['copy_bytes_s'] * 1e-9:g} GB/s", rate]
        cell += [
            microseconds(row["copy_us"]),
            *(microseconds(row["us"][name]["median"]) for name in ("bridge", "atoll")),
        ]
        fraction = {name: value * 100 for name, value in row["fraction"].items()}
        shown = f"{fraction['median']:.0f} % ({fraction['p10']:.0f} to {fraction['p90']:.0f}), {row['slowest']}"
        cell += [late_text(row["oversubscribed"]) or shown, microseconds(row["us"]["relay"]["median"])]
        cells.append([*cell, ratio_text(row["ratio"]["relay"]), f"{row['most_to_gain']:.2f}"])
    titles += ["relay", "relay / atoll", "relay / slowest stage, the most any backend can gain"]
    return text + table(titles, cells)
