# SPDX-License-Identifier: Apache-2.0
"""The operators of a divided inference on each machine, as lanes over time."""

from html import escape

from atoll.report.charts import ticks
from atoll.report.parts import folded, keys, number, scaled, table
from atoll.report.records import Line

LANES = (("robot", "this machine", "blue"), ("up", "up", "amber"), ("down", "down", "purple"),
         ("server", "server", "green"))  # fmt: skip
_HEIGHT, _GAP = 100, 14  # of a lane, in the picture's own units


def lanes(division: Line, bound: float = 0.0) -> str:
    """Returns the figure, with a line at `bound` seconds unless that is 0; "" for a division that cannot be drawn."""
    try:
        names, plan = division["operators"], division["plan"]
        events = [(str(lane), names[index], index, float(begin), float(end)) for lane, index, begin, end in
                  plan["events"] if end is not None and end > begin]  # fmt: skip
        end = max(float(plan["seconds"]), *(event[4] for event in events))
        shares = plan["shares"]
    except (KeyError, IndexError, TypeError, ValueError):
        return ""
    end = max(end, bound)
    factor, unit = scaled(end)
    boxes = []
    for place, (lane, label, colour) in enumerate(LANES):
        top = place * (_HEIGHT + _GAP)
        for at, name, _, begin, until in events:
            if at == lane:
                hint = f"{label}: {name}, {number(begin * factor)} to {number(until * factor)} {unit}"
                boxes.append(
                    f'<rect class="event c-{colour}" x="{1000 * begin / end:.2f}" y="{top}" height="{_HEIGHT}" '
                    f'width="{max(0.6, 1000 * (until - begin) / end):.2f}"><title>{escape(hint)}</title></rect>'
                )
    height = len(LANES) * (_HEIGHT + _GAP)
    if bound:
        boxes.append(f'<path class="mark" d="M{1000 * bound / end:.1f} 0V{height}"><title>bound</title></path>')
    labels = "".join(f"<span>{label}</span>" for _, label, _ in LANES)
    marks = "".join(
        f'<span style="left:{100 * at / (end * factor):.1f}%">{number(at)}</span>' for at in ticks(0, end * factor, 4)
    )
    title = f"Operators of plan {division.get('name', '?')}"
    counts = {lane: sum(1 for event in events if event[0] == lane) for lane, _, _ in LANES}
    took = f"{number(plan['seconds'] * factor)} {unit}"
    said = f"{title}: {took}, {counts['robot']} steps on this machine, {counts['server']} on the server."
    about = f"As predicted by the plan at the link's rates at that time: {took} in total."
    return (
        f'<figure class="lanes"><figcaption><h3>{escape(title)}</h3><p>{escape(about)}</p></figcaption>'
        f"{keys([(label, colour) for _, label, colour in LANES])}"
        f'<div class="plot"><div class="names" aria-hidden="true">{labels}</div>'
        f'<svg viewBox="0 0 1000 {height}" preserveAspectRatio="none" role="img" aria-label="{escape(said)}">'
        f'{"".join(boxes)}</svg><div class="x" aria-hidden="true">{marks}</div></div>'
        f'<p class="x-name">{unit}<output></output></p>'
        f"{folded('As a table', _table(names, shares, events, factor, unit, title))}</figure>\n"
    )


def _table(
    names: list[str], shares: list[list[list[int]]], events: list[tuple[str, str, int, float, float]], factor: float,
    unit: str, title: str,
) -> str:  # fmt: skip
    seconds: dict[tuple[str, int], float] = {}
    for lane, _, index, begin, end in events:
        seconds[lane, index] = seconds.get((lane, index), 0.0) + end - begin
    rows = []
    for index, (name, share) in enumerate(zip(names, shares, strict=False)):
        parts = [f"{begin} to {end}" if end > begin else "-" for begin, end in share]
        taken = [seconds.get((lane, index)) for lane, _, _ in LANES]
        rows.append([f"{index} {name}", *parts, *(number(each * factor) if each else "-" for each in taken)])
    columns = ("operator", "rows here", "rows on the server", *(f"{label}, {unit}" for _, label, _ in LANES))
    return table(columns, rows, title)
