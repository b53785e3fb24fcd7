# SPDX-License-Identifier: Apache-2.0
"""The aims for all figures, and how each figure is found in a result file."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import balancenet
import breakeven
import kaitian
import online
import parity
import pipelines_figures as pipelines
import planner
import ready
import shares
from fewer_bytes import bytes_of_half, losses_of_exact
from found import Document, Found, one, rows_of
from host import IN_ARENA
from latency_aims import above_floor, call_time, tail
from pipelines_sets import FAST, SLOW
from split_aims import divided, software, with_bytes

MIB = 1 << 20


@dataclass
class Aim:
    scenario: str
    name: str
    limit: float
    unit: str  # "x", "%", "us"
    measure: Callable[[Document], list[Found]]
    at_most: bool = False  # the value must not exceed the limit; otherwise not fall below it

    def judge(self, document: Document) -> tuple[Found, bool] | None:
        """The worst case and whether it meets the limit; None when the document does not hold it."""
        cases = [] if document["quick"] or document["busy"] else self.measure(document)
        if not cases:
            return None
        worst = max(cases, key=lambda case: case.value) if self.at_most else min(cases, key=lambda case: case.value)
        return worst, worst.value <= self.limit if self.at_most else worst.value >= self.limit

    def text(self, value: float) -> str:
        if self.unit == "%":
            return f"{value:.1%}".replace(".0%", "%")
        return f"{value:.2f}x" if self.unit == "x" else f"{value:.1f} {self.unit}".removesuffix(".0 ").rstrip()

    def spread(self, found: Found) -> str:
        """The value, with its range if that is known."""
        value, low, high = (self.text(each) for each in (found.value, found.low, found.high))
        return value if value == low == high else f"{value} ({low} to {high})"


def size_text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB" if size >= 1024 else f"{size} B"


def ratios(operation: str, ranks: int, peers: tuple[str, ...], first: int = 0, last: int = 1 << 40) -> Any:
    """Returns by size how many times as long the better of `peers` takes."""

    def measure(document: Document) -> list[Found]:
        found = []
        for row in rows_of(document, operation, ranks, first, last):
            ratio = min((row["ratio"][name] for name in peers), key=lambda ratio: ratio["median"])
            found.append(Found(ratio["median"], ratio["p10"], ratio["p90"], f"at {size_text(row['bytes'])}"))
        return found

    return measure


def bound(operation: str, ranks: int) -> Any:
    def measure(document: Document) -> list[Found]:
        found = []
        for row in rows_of(document, operation, ranks):
            if "bound_fraction" not in row:
                continue
            times = row["us"]["atoll"]
            of = [row["bound_fraction"] * times["median"] / times[name] for name in ("median", "p90", "p10")]
            found.append(Found(of[0], of[1], of[2], f"at {size_text(row['bytes'])}"))
        return found

    return measure


def bridge_rows(rates: tuple[int, ...], of_bound: bool) -> Any:
    def measure(document: Document) -> list[Found]:
        found = []
        for row in document["rows"]:
            if row["rate"] not in rates:
                continue
            case = f"{row['layout']} at {row['rate'] / 1e9:g} Gbit/s"
            if of_bound:
                times = row["us"]["atoll"]
                of = [row["bound_us"] / times[name] for name in ("median", "p90", "p10")]
                found.append(Found(of[0], of[1], of[2], case))
            else:
                ratio = row["ratio"]["gloo"]
                found.append(Found(ratio["median"], ratio["p10"], ratio["p90"], case))
        return found

    return measure


def rail_rows(name: str) -> Any:
    def measure(document: Document) -> list[Found]:
        found = []
        for row in document["rows"]:
            if row["rails"] > 1 and not row.get("late"):
                on = " of devices" if row.get("device") == "sim" else ""
                ratio, case = row[name], f"{row['rails']} at {row['rate'] / 1e9:g} Gbit/s{on}"
                found.append(Found(ratio["median"], ratio["p10"], ratio["p90"], case))
        return found

    return measure


def exposed(document: Document) -> list[Found]:
    """Exposed time as a share of what is allowed."""
    found = []
    for row in document["rows"]:
        of_atoll = row["backends"]["atoll"]
        share = [of_atoll["exposed_s"][name] / of_atoll["allowed_s"] for name in ("median", "p10", "p90")]
        found.append(Found(share[0], share[1], share[2], f"{row['layout']} at {row['rate'] / 1e9:g} Gbit/s"))
    return found


def idle_share(document: Document) -> list[Found]:
    rows = [row for row in document["rows"] if row["backend"] == "atoll"]
    return [Found(row["share"] * 100, row["share"] * 100, row["share"] * 100, f"over {row['link']}") for row in rows]


def added(library: str) -> Any:
    """Microseconds per call, in those rows whose interval is narrow enough to judge them."""

    def measure(document: Document) -> list[Found]:
        found = []
        for row in document["overhead"]:
            of = row["added_us"]
            narrow = of["high"] - of["low"] <= 2 * ADDED_US or of["low"] > ADDED_US
            if row["library"] == library and narrow:
                found.append(Found(of["median"], of["low"], of["high"], f"at {size_text(row['bytes'])}"))
        return found

    return measure


def _in_time(rows: Iterable[Any]) -> list[Any]:
    """The rows whose modelled times this machine could keep."""
    return [row for row in rows if not row["oversubscribed"]]


def step_ratio(width: bool) -> Any:
    """Returns half the width of the ratio's interval, or how far 1.00 is outside it, in percent."""

    def measure(document: Document) -> list[Found]:
        found = []
        for row in _in_time(document["rows"]):
            low, high = row["ratio"]["low"], row["ratio"]["high"]
            value = 100 * ((high - low) / 2 if width else max(low - 1, 1 - high, 0.0))
            found.append(Found(value, value, value, f"over {row['library']}"))
        return found

    return measure


def between_islands(against_relay: bool) -> Any:
    def measure(document: Document) -> list[Found]:
        found = []
        for row in _in_time(document["staging"]):
            if against_relay and row["most_to_gain"] < RELAY:
                continue  # the relay is within that factor of the slowest stage alone
            of = row["ratio"]["relay"] if against_relay else row["fraction"]
            found.append(Found(of["median"], of["p10"], of["p90"], f"{row['case']}, {' + '.join(row['devices'])}"))
        return found

    return measure


def saved_time(against: str) -> Any:
    return lambda document: one(kaitian.saved(document["rows"], against), f"2G+2M against {against}, minmax")


def of_ideal(document: Document) -> list[Found]:
    rows = document["rows"]
    mixed = [name for name, layout in kaitian.CONFIGURATIONS.items() if len(set(layout)) > 1]
    return [found for name in mixed for found in one(kaitian.of_ideal(rows, name), name)]


def over_subsets(document: Document) -> list[Found]:
    rows = document["rows"]
    found = ((name, kaitian.gain_over_subsets(rows, name)) for name in kaitian.SUBSETS)
    return [each for name, gain in found if gain is not None for each in one(100 * gain, name)]


def over_sweep(document: Document) -> list[Found]:
    parts = document["parts"]
    return [each for part in parts for each in one(shares.over_sweep(part, "minmax"), f"at {part['ratio']:g} : 1")]


def over_policies(document: Document) -> list[Found]:
    rows = document["rows"]
    cases = dict.fromkeys((row["model"], row["layout"]) for row in rows)
    return [each for case in cases for each in one(balancenet.over_others(rows, *case), ", ".join(case))]


def recovered(document: Document) -> list[Found]:
    return [each for row in online.recovered(document) for each in one(row["share"], f"run {row['turn'] + 1}")]


def plans(document: Document) -> list[Found]:
    return [each for row in online.recovered(document) for each in one(row["plans"], f"run {row['turn'] + 1}")]


def accuracy_lost(document: Document) -> list[Found]:
    """Returns how far 0 is outside the difference's interval, with weights and batch statistics over all ranks."""
    of = parity.differences(document["rows"], "weighted, sync")
    value = max(of["low"], -of["high"], 0.0)
    return [Found(value, of["low"], of["high"], "weighted, statistics over all ranks")]


def right_advice(document: Document) -> list[Found]:
    rows = [row for row in document["rows"] if not row["late"]]
    return one(sum(map(breakeven.is_right, rows)) / len(rows), f"of {len(rows)} cases") if rows else []


GBIT = 10**9
ADDED_US = 20
RELAY = 2
MPI = ("ompi4", "ompi5")
VGG, KAPAO, AGRNAV = "nsdi25_VGG19_BN", "nsdi25_kapao", "nsdi25_agrnav"
AIMS = [
    Aim("latency", "2 ranks, 4 B, one call", 10, "us", call_time(4), at_most=True),
    Aim(
        "latency", "2 ranks, 4 B, one call above torch.distributed's own time", 3.5, "us", above_floor(4), at_most=True
    ),
    Aim("latency", "2 ranks, 4 B, 99th percentile of the median", 3, "x", tail(4), at_most=True),
    Aim("latency", "4 ranks on 2 cores, 4 B, one call", 20, "us", call_time(4, 4), at_most=True),
    Aim("latency", "2 ranks, 64 KiB, one call", 25, "us", call_time(1 << 16), at_most=True),
    Aim("latency", "4 ranks, up to 64 KiB, against Gloo", 5, "x", ratios("all_reduce", 4, ("gloo",))),
    Aim("host", "2 ranks, 1 to 25 MiB, against Gloo", 3, "x", ratios("all_reduce", 2, ("gloo",), MIB, 25 * MIB)),
    Aim("host", "2 ranks, 1 to 25 MiB, against Open MPI", 1, "x", ratios("all_reduce", 2, MPI, MIB, 25 * MIB)),
    Aim("host", "2 ranks, 64 to 256 MiB, against Gloo", 3, "x", ratios("all_reduce", 2, ("gloo",), 64 * MIB)),
    Aim("host", "2 ranks, 64 to 256 MiB, against Open MPI", 1.5, "x", ratios("all_reduce", 2, MPI, 64 * MIB)),
    Aim("host", "2 ranks, 64 to 256 MiB, of the memory bound", 0.7, "%", bound("all_reduce", 2)),
    Aim(
        "host_arena",
        "2 ranks, atoll.empty, 64 to 256 MiB, against Open MPI",
        2,
        "x",
        ratios(IN_ARENA, 2, MPI, 64 * MIB),
    ),
    Aim("host_arena", "2 ranks, atoll.empty, 64 to 256 MiB, of the memory bound", 0.8, "%", bound(IN_ARENA, 2)),
    Aim(
        "host_arena",
        "2 ranks, atoll.empty, 1 to 25 MiB, against Open MPI",
        1,
        "x",
        ratios(IN_ARENA, 2, MPI, MIB, 25 * MIB),
    ),
    Aim("host", "2 ranks, all_gather, against Gloo", 3, "x", ratios("all_gather", 2, ("gloo",))),
    Aim("host", "2 ranks, reduce_scatter, against Gloo", 3, "x", ratios("reduce_scatter", 2, ("gloo",))),
    Aim("host", "4 ranks on 2 cores, against Gloo", 2, "x", ratios("all_reduce", 4, ("gloo",))),
    Aim("bridge", "200 Mbit/s and 1 Gbit/s, of M/B", 0.95, "%", bridge_rows((GBIT // 5, GBIT), True)),
    Aim("bridge", "200 Mbit/s and 1 Gbit/s, against Gloo", 1.4, "x", bridge_rows((GBIT // 5, GBIT), False)),
    Aim("bridge", "5 Gbit/s, against Gloo", 2, "x", bridge_rows((5 * GBIT,), False)),
    Aim("rails", "two and four rails, of their sum", 0.95, "%", rail_rows("large")),
    Aim("rails", "8 MiB over two and four rails, of their sum", 0.9, "%", rail_rows("boundary")),
    Aim("rails", "both ways at once, of one way", 0.95, "%", rail_rows("both")),
    Aim("ddp", "exposed time, of what is allowed", 1, "%", exposed, at_most=True),
    Aim("devices", "added per call to Gloo alone", ADDED_US, "us", added("gloo"), at_most=True),
    Aim("devices", "added per call to simccl alone", ADDED_US, "us", added("simccl"), at_most=True),
    Aim(
        "library",
        "DDP step over a library by that alone: how far its interval is from 1.00",
        0,
        "percent",
        step_ratio(False),
        at_most=True,
    ),
    Aim(
        "library",
        "DDP step over a library by that alone: half of its interval",
        3,
        "percent",
        step_ratio(True),
        at_most=True,
    ),
    Aim("devices", "islands of devices, of the slowest stage", 0.85, "%", between_islands(False)),
    Aim("devices", "islands of devices, against the relay, where 2x can be", RELAY, "x", between_islands(True)),
    Aim("kaitian", "KAITIAN's 42 %: time saved to the slow pair", 0.419, "%", saved_time("2G")),
    Aim("kaitian", "KAITIAN's 17 %: time saved to the fast pair", 0.174, "%", saved_time("2M")),
    Aim("kaitian", "samples per second, of the ideal sum", 0.9, "%", of_ideal),
    Aim("kaitian", "another device, against the best subset", 0, "percent", over_subsets, at_most=True),
    Aim("shares", "step of minmax, by the best of a sweep", 1.03, "x", over_sweep, at_most=True),
    Aim("balancenet", "samples per second of minmax, by the best other", 1, "x", over_policies),
    Aim("online", "a device slows down: recovered in 100 steps", 0.9, "%", recovered),
    Aim("online", "a device slows down: plans", 5, "", plans, at_most=True),
    Aim(
        "parity",
        "accuracy against one process: how far the interval of the difference is from 0",
        0,
        "points",
        accuracy_lost,
        at_most=True,
    ),
    Aim("breakeven", "advice on membership that is right", 1, "%", right_advice),
    Aim("split_papers", "VGG19, bytes in, outdoors", 86, "ms", divided(VGG, "compact", "outdoors"), at_most=True),
    Aim("split_papers", "VGG19, bytes in, indoors", 37, "ms", divided(VGG, "compact", "indoors"), at_most=True),
    Aim("split_papers", "VGG19, p99 beyond local's", 5, "ms", divided(VGG, "compact", "outdoors", True), at_most=True),
    Aim("split_papers", "kapao, outdoors", 620, "ms", divided(KAPAO, "as sent", "outdoors"), at_most=True),
    Aim("split_papers", "AGRNav, outdoors", 533, "ms", divided(AGRNAV, "as sent", "outdoors"), at_most=True),
    Aim("split_papers", "AGRNav, bits in, outdoors", 322, "ms", divided(AGRNAV, "compact", "outdoors"), at_most=True),
    Aim("split_bytes", "real bytes: overhead of an inference, median", 2, "ms", software("p50"), at_most=True),
    Aim("split_bytes", "real bytes: overhead of an inference, p99", 5, "ms", software("p99"), at_most=True),
    Aim("split_bytes", "real bytes: VGG19, outdoors", 86, "ms", with_bytes(VGG, "compact", "outdoors"), at_most=True),
    Aim("split_bytes", "real bytes: VGG19, indoors", 37, "ms", with_bytes(VGG, "compact", "indoors"), at_most=True),
    Aim(
        "split_bytes",
        "real bytes: VGG19, p99 beyond local's, outdoors",
        5,
        "ms",
        with_bytes(VGG, "compact", "outdoors", True),
        at_most=True,
    ),
    Aim(
        "split_bytes",
        "real bytes: VGG19, p99 beyond local's, indoors",
        5,
        "ms",
        with_bytes(VGG, "compact", "indoors", True),
        at_most=True,
    ),
    Aim(
        "split_bytes", "real bytes: kapao, outdoors", 620, "ms", with_bytes(KAPAO, "as sent", "outdoors"), at_most=True
    ),
    Aim(
        "split_bytes",
        "real bytes: AGRNav, outdoors",
        533,
        "ms",
        with_bytes(AGRNAV, "as sent", "outdoors"),
        at_most=True,
    ),
    Aim(
        "split_bytes", "real bytes: AGRNav, indoors", 560, "ms", with_bytes(AGRNAV, "as sent", "indoors"), at_most=True
    ),
    Aim(
        "split_bytes",
        "real bytes: AGRNav, bits in, outdoors",
        322,
        "ms",
        with_bytes(AGRNAV, "compact", "outdoors"),
        at_most=True,
    ),
    Aim(
        "split_bytes",
        "real bytes: AGRNav, bits in, indoors",
        203,
        "ms",
        with_bytes(AGRNAV, "compact", "indoors"),
        at_most=True,
    ),
    Aim("fewer_bytes", "int8 instead of bfloat16: bytes on the wire", 0.55, "x", bytes_of_half, at_most=True),
    Aim("fewer_bytes", "int8: loss by that of float32", 1.01, "x", losses_of_exact, at_most=True),
    Aim("pipelines", "mixed pipeline, of the planner's bound", 99, "percent", pipelines.mixed_of("bound_s")),
    Aim("pipelines", "mixed pipeline, of the planner's own time", 99, "percent", pipelines.mixed_of("planned_s")),
    Aim("pipelines", "mixed by fast-fast, beyond the paper's", 0, "points", pipelines.beyond_paper(FAST)),
    Aim("pipelines", "mixed by slow-slow, beyond the paper's", 0, "points", pipelines.beyond_paper(SLOW)),
    Aim("pipelines", "a bad split, by slow-slow", 1, "x", pipelines.bad_split, at_most=True),
    Aim("pipelines", "simulated step, off the measured one", 5, "percent", pipelines.simulated, at_most=True),
    Aim(
        "pipelines_long",
        "500 iterations: spread beyond equal devices'",
        1,
        "points",
        pipelines.steadiness,
        at_most=True,
    ),
    Aim("pipelines_long", "500 iterations: loss off one process's", 1, "percent", pipelines.losses, at_most=True),
    Aim("pipelines", "float64: 20 steps off one process's", 1, "x 1e-10", pipelines.exactness, at_most=True),
    Aim("planner", "a plan of 131 items on 16 devices", 1000, "ms", planner.longest("plans"), at_most=True),
    Aim("planner", "a step of 4096 ranks simulated", 1000, "ms", planner.longest("simulations"), at_most=True),
    Aim("ready", "import, beyond torch's", 100, "ms", ready.after_torch, at_most=True),
    Aim("ready", "4 ranks ready, beyond Gloo's", 2, "s", ready.more_than_gloo("atoll run, Atoll"), at_most=True),
    Aim("idle", "a waiting rank, of a core, in percent", 2, "percent", idle_share, at_most=True),
]
