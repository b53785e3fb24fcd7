# SPDX-License-Identifier: Apache-2.0
"""Where a second island stops paying: gradients of different sizes over links of different rates, measured, and what
`advise_membership` says beforehand. Needs root."""

import os
from typing import Any

import chart
import plots
import uneven
from atoll import _C
from atoll.plan.documents import document_of
from bridge import rate_text
from contenders import Place, TorchRanks
from netns import ADDRESSES, ShapedLink
from results import Settings, say, table
from tcp_stream import payload_rate

TITLE = "where a second island stops paying"
RATES = tuple(10**6 * rate for rate in (20, 50, 100, 200, 1000))
PARAMETERS = (1 << 16, 1 << 18, 1 << 20)  # of the square layer; all sizes take the same number of operations per sample
WORK = 1 << 20  # parameters times passes
SPEED = 0.05
CLOSE = 0.05  # if both take as long as one alone, within that share, either advice is right
LATENCY = 0.5e-3


def measure(settings: Settings) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise RuntimeError("a shaped link needs root: run this scenario as root")
    sizes = PARAMETERS[:1] if settings.quick else PARAMETERS
    speed = SPEED * (20 if settings.quick else 1)
    alone = {}
    with TorchRanks(uneven.places([uneven.Device("A", speed)]), ["atoll"]) as ranks:
        for size in sizes:
            alone[size] = uneven.train(ranks, _run(settings, size))
    rows = []
    for rate in RATES[-1:] if settings.quick else RATES:
        with ShapedLink(rate) as link:
            seconds = 0.3 if settings.quick else 2.0
            bytes_per_second = payload_rate(link.prefix(1), ADDRESSES[1], link.prefix(0), seconds)
            places = [_simulated(place, island, speed) for place, island in zip(link.places("AB"), "AB", strict=True)]
            with TorchRanks(places, ["atoll"], link.store) as ranks:
                for size in sizes:
                    both = uneven.train(ranks, _run(settings, size))
                    rows.append(_row(size, rate, bytes_per_second, alone[size], both))
    document = {"rows": rows, "batch": _run(settings, sizes[0]).batch}
    settings.output.mkdir(parents=True, exist_ok=True)
    (settings.output / "breakeven.svg").write_text(_plot(rows))
    return document


def _simulated(place: Place, island: str, speed: float) -> Place:
    return Place(place.prefix, (*place.environment, *uneven.on_device(uneven.Device(island, speed))))


def _run(settings: Settings, parameters: int) -> uneven.Run:
    passes = 1 if settings.quick else WORK // parameters
    return uneven.Run(
        "wide", {"parameters": parameters, "passes": passes}, batch=8 if settings.quick else 64,
        steps=3 if settings.quick else 9, warm_up=1 if settings.quick else 3, rate=1e-3,
    )  # fmt: skip


def _row(
    parameters: int, rate: int, bytes_per_second: float, alone: dict[str, Any], both: dict[str, Any]
) -> dict[str, Any]:  # fmt: skip
    gradient = both["gradient_bytes"]
    advice = advised(both["profiles"], sum(both["batches"]), gradient, bytes_per_second)
    row = {
        "parameters": parameters, "gradient_bytes": gradient, "rate": rate, "bytes_per_second": bytes_per_second,
        "alone": alone["step"], "both": both["step"], "batches": both["batches"], "advice": advice,
        "late": sorted({*alone["late"], *both["late"]}),
    }  # fmt: skip
    say(f"{gradient / 1e6:.2f} MB over {rate_text(rate)}: {ratio(row):.2f} of alone, advised {advice['best']}")
    return row


def advised(
    profiles: list[dict[str, Any]], batch: int, gradient_bytes: int, bytes_per_second: float
) -> dict[str, Any]:  # fmt: skip
    """Asks the planner about two ranks, each an island of its own, whose gradients are one bucket: none of the
    communication overlaps the backward pass."""
    costs = [_C.fit_cost([(at["batch"], at["seconds"]) for at in profile["sizes"]])[0] for profile in profiles]
    ranks = [{"name": name, "cost": document_of(cost)} for name, cost in zip("AB", costs, strict=True)]
    network = {"gradient_bytes": gradient_bytes, "islands": [0, 1], "inside_bytes_per_second": [1e10, 1e10],
               "bridge_bytes_per_second": bytes_per_second, "bridge_latency": LATENCY, "overlap": 0}  # fmt: skip
    return _C.advise_membership({"ranks": ranks, "batch": batch, "network": network})


def ratio(row: dict[str, Any]) -> float:
    """Returns the step time of both islands divided by that of one alone: below 1 the second one pays."""
    return float(row["both"]["median"] / row["alone"]["median"])


def is_right(row: dict[str, Any]) -> bool:
    joins = len(row["advice"]["best"]) > 1
    return abs(ratio(row) - 1) < CLOSE or joins == (ratio(row) < 1)


def _plot(rows: list[dict[str, Any]]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in uneven.counted(rows):
        lines.setdefault(f"{row['gradient_bytes'] / 1e6:.2f} MB", []).append((row["rate"] / 1e6, ratio(row)))
    title = "Step of two islands by that of one: below 1 the second one pays"
    return chart.log_log(title, "Mbit/s", "ratio", lines) if lines else plots.nothing(title)


def report(document: dict[str, Any]) -> str:
    text = (
        "Two equal devices, an island each, in network namespaces joined by a veth pair that `tc tbf` shapes; global "
        f"batch {document['batch']}. One layer is used as often as it takes for all sizes to compute alike, so that "
        "only the gradient's bytes differ. *Alone*: one device computes the whole batch. *Advised* is what "
        "`advise_membership` says of the measured profiles, the rate of a plain TCP stream and the gradient's bytes, "
        f"before any step. Within {CLOSE:.0%} either advice is right. {uneven.MODELLED}\n\n"
        "![Step of two islands by that of one](breakeven.svg)\n\n"
    )
    cells = []
    for row in document["rows"]:
        advice = row["advice"]
        cells.append([
            f"{row['gradient_bytes'] / 1e6:.2f} MB", rate_text(row["rate"]), uneven.milliseconds(row["alone"]),
            uneven.milliseconds(row["both"]), uneven.figure(row, f"{ratio(row):.2f}"),
            f"{advice['all_step'] * 1e3:.1f}", "both" if len(advice["best"]) > 1 else "alone",
            uneven.figure(row, "right" if is_right(row) else "wrong"),
        ])  # fmt: skip
    titles = ["gradient", "link", "alone ms", "both ms", "both / alone", "predicted ms", "advised", ""]
    return text + table(titles, cells)
