# SPDX-License-Identifier: Apache-2.0
"""Small messages through torch.distributed: time of single calls, and of calls of a backend that does nothing."""

from dataclasses import replace
from typing import Any

import nothing
from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size, parse_sizes
from compare import compare
from contenders import Contender, Place, Result, TorchContender, TorchRanks
from results import Settings, microseconds, ratio_text, say, table

TITLE = "latency of small all_reduce calls"
SIZES = parse_sizes("4..64K*4")


class Floor(TorchContender):
    """The backend that does nothing, whose results are not looked at: what a call costs in torch.distributed itself."""

    def block(self, problem: Problem, calls: int, each: bool) -> Result:
        return replace(super().block(problem, calls, each), wrong=0)


def measure(settings: Settings) -> dict[str, Any]:
    parts = []
    for count in (2, 4):
        rows = []
        with TorchRanks([Place()] * count, [*settings.backends, nothing.NAME]) as ranks:
            contenders: dict[str, Contender] = {name: ranks.contender(name) for name in settings.backends}
            contenders[nothing.NAME] = Floor(ranks, nothing.NAME)
            for size in SIZES[:2] if settings.quick else SIZES:
                row = compare(contenders, Problem("all_reduce", size), settings.rounds(31), each=True)
                rows.append(row)
                times = ", ".join(f"{name} {microseconds(call['median'])}" for name, call in row["call_us"].items())
                say(f"{count} ranks, {format_size(size)}: {times}")
        parts.append({"ranks": count, "rows": rows})
    return {"parts": parts}


def report(document: dict[str, Any]) -> str:
    text = (
        "Time of one synchronous `all_reduce` call (float32 sum, in place) as Python sees it, over all calls of all "
        "ranks. The ratio compares whole blocks of calls, round by round: median, and in brackets the 10th to 90th "
        f"percentile. `{nothing.NAME}` is a backend that returns at once: its time is torch.distributed's own part of "
        "every other one's.\n"
    )
    for part in document["parts"]:
        names = list(part["rows"][0]["us"])
        titles = ["size", *(f"{name}, {what}" for name in names for what in ("median", "p99"))]
        titles += [f"{name} / {names[0]}" for name in names[1:]]
        rows = [
            [
                format_size(row["bytes"]),
                *(microseconds(row["call_us"][name][what]) for name in names for what in ("median", "p99")),
                *(ratio_text(row["ratio"][name]) for name in names[1:]),
            ]
            for row in part["rows"]
        ]
        text += f"\n## {part['ranks']} ranks\n\n{table(titles, rows)}"
    return text
