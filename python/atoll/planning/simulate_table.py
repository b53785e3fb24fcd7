# SPDX-License-Identifier: Apache-2.0
"""Simulated steps as tables."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atoll._tables import new_table, wide
from atoll.planning.table import seconds_text

Answer = dict[str, Any]
_MAX_RANKS = 32  # with more, ranks with the same work share a line
_TIMES = ("computes", "optimises", "transfers", "reduces", "idle")


def show(answer: Answer, console: Console | None = None) -> None:
    """Prints ranks, the critical path, the rails and the verdict of one simulation."""
    console = wide(console)
    for title, table in (("Ranks", _ranks(answer)), ("The step consists of", _path(answer)), ("Rails", _rails(answer))):
        if table.row_count:
            console.print(Text(title, "bold"))
            console.print(table)
            console.print()
    for line in lacking(answer):
        console.print(Text(line, "yellow"))
    console.print(Text(verdict(answer), "bold"), soft_wrap=True)


def compare(answers: Mapping[str, Answer], console: Console | None = None) -> None:
    """Prints one line for each of several simulations."""
    table = new_table("links", "step", "step/best", "step/bound", "bubble", "reduces", left=("links",))
    best = min(answer["step_seconds"] for answer in answers.values())
    for name, answer in answers.items():
        step = answer["step_seconds"]
        reduces = sum(rank["reduces"] for rank in answer["ranks"]) / max(1, len(answer["ranks"]))
        table.add_row(name, seconds_text(step), _ratio(step, best), _ratio(step, answer["bound"]),
                      f"{100 * answer['bubble']:.1f} %", _seconds(reduces))  # fmt: skip
    wide(console).print(table)


def verdict(answer: Answer) -> str:
    """Returns the time of a step and its distance from the bound."""
    step, bound = answer["step_seconds"], answer["bound"]
    return (
        f"Atoll: a step takes {seconds_text(step)}; the same actions take at least {seconds_text(bound)}"
        f" ({_ratio(step, bound)}); bubble {100 * answer['bubble']:.1f} %"
    )


def lacking(answer: Answer) -> list[str]:
    """Returns lines about ranks whose memory is too small."""
    return [
        f"rank {place} ({rank['name']}) needs {_giga(rank['peak_bytes'])} GB but has {_giga(rank['memory_bytes'])}"
        for place, rank in enumerate(answer["ranks"])
        if not rank.get("fits", True)
    ]


def _giga(value: float) -> str:
    return f"{value / 1e9:.4g}"


def _ratio(value: float, of: float) -> str:
    return f"{value / of:.3f}" if of > 0 else "-"


def _seconds(seconds: float) -> str:
    return seconds_text(seconds) if seconds > 0 else "-"


def _stages_of(answer: Answer) -> dict[int, str]:
    stages: dict[int, list[str]] = {}
    for stage in answer["stages"]:
        stages.setdefault(stage["rank"], []).append(str(stage["stage"]))
    return {rank: " ".join(names) for rank, names in stages.items()}


def _ranks(answer: Answer) -> Table:
    """Returns a line for each rank, or the means of all ranks with the same stages on the same class of one island."""
    stages = _stages_of(answer)
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, rank in enumerate(answer["ranks"]):
        alone = (str(place),) if len(answer["ranks"]) <= _MAX_RANKS else ()
        groups.setdefault((rank["island"], rank["class"], stages.get(place, "-"), *alone), []).append(place)
    table = new_table("ranks", "name", "island", "stages", *_TIMES, "memory", left=("name", "island", "stages"))
    for (island, kind, stage, *_), places in groups.items():
        ranks = [answer["ranks"][place] for place in places]
        means = [_seconds(sum(rank[time] for rank in ranks) / len(ranks)) for time in _TIMES]
        memory = max(rank["peak_bytes"] for rank in ranks)
        table.add_row(
            str(places[0]) if len(places) == 1 else f"{places[0]}, ... ({len(places)})",
            ranks[0]["name"] if len(ranks) == 1 else kind, island, stage, *means,
            f"{_giga(memory)} GB" if memory > 0 else "-",
        )  # fmt: skip
    return table


def _path(answer: Answer) -> Table:
    table = new_table("what", "where", "seconds", "share", left=("what", "where"))
    for part in answer["path"]:
        share = f"{100 * part['seconds'] / answer['seconds']:.1f} %"
        table.add_row(part["what"], part["where"], seconds_text(part["seconds"]), share)
    return table


def _rails(answer: Answer) -> Table:
    table = new_table("busiest", "of", "way", "bytes", "in use", left=("busiest", "of", "way"))
    for rail in answer["rails"]:
        table.add_row(rail["name"], rail["where"], rail["direction"], f"{_giga(rail['bytes'])} GB",
                      f"{100 * rail['share']:.1f} %")  # fmt: skip
    return table
