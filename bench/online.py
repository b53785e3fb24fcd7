# SPDX-License-Identifier: Apache-2.0
"""A device becomes slower in the middle of a training: with the first plan kept, with plans that follow, and with a
plan that knew of it from the start."""

from typing import Any

import plots
import uneven
from atoll.bench.block import quantile
from contenders import TorchRanks
from results import Settings, say, table

TITLE = "a device slows down: static against following plans"
SPEEDS = (0.3, 0.3)
CHANGE, WITHIN, LAST = 60, 100, 20  # steps: before the change, until recovered, of the window that is judged
INTERVAL = 10
PASSES = 6  # additional forward passes: with three times the work of one in a step, about three times as slow
RANK = 1
CASES = {"static": (0, CHANGE), "online": (INTERVAL, CHANGE), "known": (0, 0)}  # update interval, slow from


def measure(settings: Settings) -> dict[str, Any]:
    change, after = (4, 6) if settings.quick else (CHANGE, WITHIN + LAST)
    faster = 10.0 if settings.quick else 1.0
    devices = [uneven.Device("gpu", speed * faster) for speed in SPEEDS]
    rows = []
    with TorchRanks(uneven.places(devices), ["atoll"]) as ranks:
        for turn in range(1 if settings.quick else 3):
            for name, (interval, slow_from) in CASES.items():
                run = uneven.Run(
                    "alexnet", batch=16 if settings.quick else 128, steps=change + after, warm_up=1,
                    interval=min(interval, 2) if settings.quick else interval, rate=0.02, slow_rank=RANK,
                    slow_from=change if slow_from else 0, slow_passes=PASSES,
                )  # fmt: skip
                row = {"case": name, "turn": turn, **uneven.train(ranks, run)}
                rows.append(row)
                say(f"{name}: {uneven.batches_text(row)}, {len(row['plans']) - 1} changes")
    document = {"rows": rows, "change": change, "after": after, "interval": INTERVAL, "last": min(LAST, after // 2)}
    settings.output.mkdir(parents=True, exist_ok=True)
    (settings.output / "online.svg").write_text(_plot(document))
    return document


def window(row: dict[str, Any], first: int, last: int) -> float:
    """The median of the steps from `first` to before `last`."""
    return quantile(row["steps_s"][first:last], 0.5)


def recovered(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns, by turn, the steps of the three trainings and the share of the lost time that the following one
    recovered."""
    found = []
    change, after, last = document["change"], document["after"], document["last"]
    for turn in sorted({row["turn"] for row in document["rows"]}):
        rows = {row["case"]: row for row in document["rows"] if row["turn"] == turn}
        if any(row["late"] for row in rows.values()):
            continue
        steps = {name: window(row, change + after - last, change + after) for name, row in rows.items()}
        lost = steps["static"] - steps["known"]
        found.append({
            "turn": turn, **steps, "before": window(rows["static"], min(5, change // 2), change),
            "share": (steps["static"] - steps["online"]) / lost if lost > 0 else None,
            "plans": len(rows["online"]["plans"]),
        })  # fmt: skip
    return found


def _plot(document: dict[str, Any]) -> str:
    first = uneven.counted([row for row in document["rows"] if row["turn"] == 0])
    lines = {row["case"]: [(float(at), s * 1e3) for at, s in enumerate(row["steps_s"])][3:] for row in first}
    return plots.lines(f"Steps before and after the change at step {document['change']}", "step", "ms", lines)


def report(document: dict[str, Any]) -> str:
    change, after, last = document["change"], document["after"], document["last"]
    text = (
        f"Two equal devices; from step {change} on one of them does {PASSES} forward passes more in every step. "
        f"*static* keeps its first plan, *online* looks at the times every {document['interval']} steps, *known* "
        f"measured a device that was slow from the beginning. Steps are medians of the last {last} of {after} steps "
        f"after the change. Recovered: how much of static's loss against known online got back. {uneven.MODELLED}\n\n"
        "![Steps before and after the change](online.svg)\n\n"
    )
    cells = []
    for row in recovered(document):
        times = [f"{row[name] * 1e3:.1f}" for name in ("before", "static", "online", "known")]
        share = "" if row["share"] is None else f"{row['share']:.1%}"
        cells.append([str(row["turn"] + 1), *times, share, str(row["plans"])])
    late = sum(bool(row["late"]) for row in document["rows"])
    text += table(["run", "before ms", "static ms", "online ms", "known ms", "recovered", "plans"], cells)
    return text + (f"\n{late} trainings were oversubscribed: no figures of their runs.\n" if late else "")
