# SPDX-License-Identifier: Apache-2.0
"""Shows an examination as tables; the JSON document holds the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from atoll._tables import new_table, wide
from atoll.bench.sizes import format_size
from atoll.doctor import heat_map
from atoll.doctor.findings import NOTE, PROBLEM, ranks_text
from atoll.doctor.links import MAX_RANKS_FOR_ALL_PAIRS
from atoll.report.links import rates

Document = dict[str, Any]
Part = tuple[str, RenderableType]  # with its title
_STYLES = {PROBLEM: "bold red", NOTE: "dim"}


def show(document: Document, console: Console | None = None) -> None:
    """Prints all sections, the findings and the verdict; parts that were not reached are omitted."""
    console = wide(console)
    for title, part in _parts(document):
        console.print(Text(title, "bold"))
        console.print(part)
        console.print()
    for finding in document["findings"]:
        style = _STYLES.get(finding["level"], "yellow")
        console.print(Text.assemble((finding["level"], style), ": ", finding["what"]))
        console.print(Text(f"  {finding['fix']}"))
    console.print(Text(document["verdict"], "bold red" if document["problems"] else "bold green"), soft_wrap=True)


def verdict(problems: int, warnings: int) -> str:
    """Returns the last line of a report."""
    found = "no problem" if problems == 0 else f"{problems} problem{'s' if problems > 1 else ''}"
    also = f", {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""
    return f"Atoll: doctor found {found}{also}"


def _parts(document: Document) -> Iterator[Part]:
    if document["ranks"]:
        yield "Ranks", _ranks(document["ranks"])
    if document["islands"]:
        yield "Islands", _islands(document["islands"])
    if document["links"]:
        yield from _links(document)
    for group in document["groups"]:
        yield f"Process group {group['group']}, {group['ranks']} ranks", _group(group)
    if document["schedule"]:
        yield from _schedule(document["schedule"])
    if document["self_test"]:
        yield "Self-test", _self_test(document["self_test"])


def _ranks(ranks: Sequence[Document]) -> Table:
    columns = ("rank", "host", "pid", "device", "name", "cores", "memory", "atoll", "torch", "python", "library")
    table = new_table(*columns, left=set(columns) - {"rank", "pid", "cores", "memory"})
    for each in ranks:
        device = each["device"] if each["device_count"] < 2 else f"{each['device']} of {each['device_count']}"
        versions = (each["versions"][name] for name in ("atoll", "torch", "python"))
        table.add_row(
            str(each["rank"]), each["host"], str(each["pid"]), device, each["device_name"], str(len(each["cores"])),
            f"{each['memory_bytes'] / 2**30:.0f} GiB", *versions, each["library"] or "-",
        )  # fmt: skip
    return table


def _islands(islands: Sequence[Document]) -> Table:
    columns = ("island", "ranks", "device", "reduced by")
    table = new_table(*columns, left=columns)
    for each in islands:
        table.add_row(each["island"], _numbers(each["ranks"]), each["device"], each["library"])
    return table


def _numbers(ranks: Sequence[int]) -> str:
    return ranks_text(ranks).partition(" ")[2]


def _links(document: Document) -> Iterator[Part]:
    pairs = document["links"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        reasons.setdefault((pair["link"], pair["reason"]), []).append(f"{pair['a']}-{pair['b']}")
    table = new_table("pairs", "link", "why", left=("pairs", "link", "why"))
    for (link, why), names in reasons.items():
        table.add_row(" ".join(names), link, why)
    yield "Links", table
    count = len(document["ranks"])
    sizes = " or ".join(format_size(size) for size in sorted({pair["bytes"] for pair in pairs}))
    if count > MAX_RANKS_FOR_ALL_PAIRS:
        yield f"Half a round trip of 4 bytes, and messages of {sizes}", _pair_list(pairs)
        return
    delays, speeds = heat_map.latencies(document), rates(document)
    title = "Latency in us: half a round trip of 4 bytes"
    yield title, _matrix(count, lambda a, b: _heat(f"{delays[a, b]:.1f}", delays[a, b], delays, low_is_good=True))
    title = f"Bandwidth in GB/s, row to column, messages of {sizes}"
    yield title, _matrix(count, lambda a, b: _heat(f"{speeds[a, b]:.2f}", speeds[a, b], speeds, low_is_good=False))


def _heat(text: str, value: float, of: Mapping[tuple[int, int], float], low_is_good: bool) -> Text:
    return heat_map.cell(text, heat_map.goodness(value, of, low_is_good))


def _matrix(count: int, cell: Callable[[int, int], Text]) -> Table:
    names = [str(rank) for rank in range(count)]
    table = new_table("rank", *names)
    for a in range(count):
        table.add_row(str(a), *(Text("-") if a == b else cell(a, b) for b in range(count)))
    return table


def _pair_list(pairs: Sequence[Document]) -> Table:
    table = new_table("pair", "us", "GB/s there", "GB/s back")
    for pair in pairs:
        speeds = (f"{pair[way]:.2f}" for way in ("a_to_b", "b_to_a"))
        table.add_row(f"{pair['a']}-{pair['b']}", f"{pair['latency_us']:.1f}", *speeds)
    return table


def _group(group: Document) -> Table:
    inside = ", ".join(f"{each['island']}: {each['library']}" for each in group["islands"])
    columns = ("device", "backend", "ranks", "islands use")
    table = new_table(*columns, left=columns)
    for each in group["backends"]:
        table.add_row(each["device"], each["backend"], _numbers(each["ranks"]), inside)
    return table


def _schedule(schedule: Document) -> Iterator[Part]:
    size = format_size(schedule["bytes"])
    title = f"Schedule of {schedule['operation']}, {size}: {schedule['elements']} x {schedule['dtype']}"
    table = new_table("rank", "part", left=("part",))
    for rank, summary in enumerate(schedule["summaries"]):
        table.add_row(str(rank), summary)
    yield title, table
    if schedule["steps"]:
        yield f"Steps of rank {schedule['steps_of']}", Text(schedule["steps"].rstrip())


def _self_test(rows: Sequence[Document]) -> Table:
    columns = ("operation", "tensors", "cases", "result", "seen by")
    table = new_table(*columns, left=set(columns) - {"cases"})
    for row in rows:
        result = Text("PASS", "green") if row["passed"] else Text("FAIL", "bold red")
        seen = "; ".join(f"rank {each['rank']}: {each['what']}" for each in row["failures"])
        table.add_row(row["operation"], row["tensors"], str(row["cases"]), result, seen)
    return table
