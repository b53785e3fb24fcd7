# SPDX-License-Identifier: Apache-2.0
"""Two islands over a shaped link: all_reduce against the cut bound M/B and against Gloo. Needs root."""

from typing import Any

from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size
from compare import compare, spread
from contenders import Contender, TorchRanks
from netns import ADDRESSES, ShapedLink
from results import Settings, microseconds, ratio_text, say, table
from tcp_stream import payload_rate

TITLE = "two islands over a shaped link against the bound M/B"
LAYOUTS = ("AABB", "AAAB")
RATES = (200_000_000, 1_000_000_000, 5_000_000_000)
SIZE = 64 << 20


def rate_text(bits_per_second: int) -> str:
    return f"{bits_per_second // 10**9} Gbit/s" if bits_per_second >= 10**9 else f"{bits_per_second // 10**6} Mbit/s"


def measure(settings: Settings) -> dict[str, Any]:
    size = 1 << 20 if settings.quick else SIZE
    rows = []
    for rate in RATES[1:2] if settings.quick else RATES:
        for layout in LAYOUTS:
            with ShapedLink(rate) as link, TorchRanks(link.places(layout), settings.backends, link.store) as ranks:
                rows.append(_measure_link(settings, link, ranks, layout, size))
    return {"bytes": size, "rows": rows}


def _measure_link(settings: Settings, link: ShapedLink, ranks: TorchRanks, layout: str, size: int) -> dict[str, Any]:
    streams: list[float] = []

    def measure_stream() -> None:
        seconds = 0.6 if settings.quick else 3.0
        streams.append(payload_rate(link.prefix(1), ADDRESSES[1], link.prefix(0), seconds))

    contenders: dict[str, Contender] = {name: ranks.contender(name) for name in settings.backends}
    # The blocks are so long that the shaper's bucket, which is full at their start, makes little difference.
    row = compare(
        contenders, Problem("all_reduce", size), settings.rounds(5), block_seconds=0.5, before_round=measure_stream
    )
    stream = spread(streams)
    bound_us = size / stream["median"] * 1e6
    fractions = {name: bound_us / times["median"] for name, times in row["us"].items()}
    row |= {"rate": link.rate, "layout": layout, "stream_bytes_s": stream, "streams": streams}
    row |= {"bound_us": bound_us, "bound_fraction": fractions}
    row["links"] = [answer["kinds"] for answer in ranks.ask("links", backend=settings.backends[0])]
    shares = ", ".join(f"{name} {share:.1%} of M/B" for name, share in fractions.items())
    say(f"{rate_text(link.rate)}, {layout}: {shares}")
    return row


def report(document: dict[str, Any]) -> str:
    names = document["backends"]
    text = (
        f"all_reduce of {format_size(document['bytes'])} (float32 sum) between two network namespaces joined by a veth "
        "pair that `tc tbf` shapes. The ranks of an island share a namespace. B is the payload rate of one plain TCP "
        "stream, measured before every round; M/B is the least time in which the bytes can cross. Ratios as "
        "everywhere: median, and the 10th to 90th percentile over rounds.\n\n"
    )
    titles = ["link", "islands", "B", "M/B"]
    for name in names:
        titles += [name, f"{name}, of the bound"]
    titles += [f"{name} / {names[0]}" for name in names[1:]]
    titles += [f"{name} / bound, the most any backend can gain" for name in names[1:]]
    rows = []
    for row in document["rows"]:
        cells = [rate_text(row["rate"]), row["layout"], f"{row['stream_bytes_s']['median'] * 1e-6:.1f} MB/s"]
        cells.append(microseconds(row["bound_us"]))
        for name in names:
            cells += [microseconds(row["us"][name]["median"]), f"{row['bound_fraction'][name]:.1%}"]
        cells += [ratio_text(row["ratio"][name]) for name in names[1:]]
        rows.append([*cells, *(f"{1 / row['bound_fraction'][name]:.2f}" for name in names[1:])])
    return text + table(titles, rows)
