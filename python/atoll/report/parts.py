# SPDX-License-Identifier: Apache-2.0
"""Parts of a page: tables, bars and heat maps, as self-contained HTML."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

Item = TypeVar("Item")

MAX_ROWS = 60  # per table; of more, this many are shown, evenly chosen
PLAIN, GOOD, BAD = "plain", "good", "bad"  # kinds of sentences


@dataclass(frozen=True)
class Sentence:
    """A sentence of a verdict."""

    text: str
    kind: str = PLAIN


def sentences(said: Iterable[Sentence]) -> str:
    words = {PLAIN: "", GOOD: "<b>Good: </b>", BAD: "<b>To improve: </b>"}
    items = "".join(f'<li class="{each.kind}">{words[each.kind]}{escape(each.text)}</li>' for each in said)
    return f'<ul class="verdict">{items}</ul>'


def section(title: str, *content: str, about: str = "") -> str:
    intro = f"<p>{escape(about)}</p>" if about else ""
    return f"<section><h2>{escape(title)}</h2>{intro}{''.join(content)}</section>\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str, numbers: bool = True) -> str:
    """Returns a table whose first column names the row."""
    shown = evenly(rows, MAX_ROWS)
    more = f" {len(shown)} of {len(rows)} rows, evenly chosen." if len(shown) < len(rows) else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in shown
    )
    kind = "numbers" if numbers else "words"
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="{kind}">'
        f"<caption>{escape(caption)}{more}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


@dataclass(frozen=True)
class Bar:
    """One row of bars: its name, and its parts in the order of the legend."""

    name: str
    parts: Sequence[float]


def bars(title: str, about: str, legend: Sequence[tuple[str, str]], rows: Sequence[Bar], unit: str) -> str:
    """Returns horizontal bars on one scale. `legend`: names and colours (of page.css) of the parts."""
    end = max((sum(row.parts) for row in rows), default=0.0) or 1.0
    drawn = []
    for row in rows:
        boxes = "".join(
            f'<span class="box c-{colour}" style="width:{100 * part / end:.3f}%" '
            f'title="{escape(f"{row.name}: {name} {number(part)} {unit}")}"></span>'
            for part, (name, colour) in zip(row.parts, legend, strict=True)
            if part > 0
        )
        drawn.append(f'<div class="bar"><span class="name">{escape(row.name)}</span><div>{boxes}</div></div>')
    said = "; ".join(
        f"{row.name}: "
        + ", ".join(f"{name} {number(part)} {unit}" for part, (name, _) in zip(row.parts, legend, strict=True))
        for row in evenly(rows, 8)
    )
    columns = ["", *(f"{name}, {unit}" for name, _ in legend), f"together, {unit}"]
    figures = [[row.name, *map(number, row.parts), number(sum(row.parts))] for row in rows]
    return (
        f'<figure class="bars"><figcaption><h3>{escape(title)}</h3><p>{escape(about)}</p></figcaption>{keys(legend)}'
        f'<div role="img" aria-label="{escape(said)}">{"".join(drawn)}</div>'
        f'<p class="scale" aria-hidden="true"><span>0</span><span>{number(end / 2)}</span>'
        f"<span>{number(end)} {unit}</span></p>{folded('As a table', table(columns, figures, title))}</figure>\n"
    )


def keys(legend: Sequence[tuple[str, str]], dashes: bool = False) -> str:
    shape = "M0 5H24" if dashes else "M0 0H24V10H0Z"
    items = "".join(
        f'<li><svg class="key" aria-hidden="true" viewBox="0 0 24 10"><path d="{shape}" '
        f'class="{f"line d{place % 4}" if dashes else "area"} c-{colour}"/></svg>{escape(name)}</li>'
        for place, (name, colour) in enumerate(legend)
    )
    return f'<ul class="legend">{items}</ul>'


def heat(
    title: str, about: str, names: Sequence[str], values: Sequence[Sequence[float | None]], unit: str,
    dark_is_low: bool = False,
) -> str:  # fmt: skip
    """Returns a matrix from row to column, with stronger colours for larger numbers, or for smaller ones."""
    there = [value for row in values for value in row if value is not None]
    low, high = (min(there), max(there)) if there else (0.0, 0.0)

    def cell(value: float | None) -> str:
        if value is None:
            return "<td>-</td>"
        share = (value - low) / (high - low) if high > low else 0.5
        strength = 6 + 54 * (1 - share if dark_is_low else share)
        return f'<td style="--heat:{strength:.0f}%">{number(value)}</td>'

    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(map(cell, row))}</tr>'
        for name, row in zip(names, values, strict=True)
    )
    end = f"from {number(low)} to {number(high)} {unit}" if there else "nothing measured"
    return (
        f'<figure class="heat"><figcaption><h3>{escape(title)}</h3><p>{escape(about)}</p></figcaption>'
        f"<p>Row to column, {escape(unit)}; {end}.</p>"
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(title)}"><table class="numbers">'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>\n"
    )


def number(value: float | None) -> str:
    """Returns the number with three significant digits."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if abs(share) < 0.1 else f"{100 * share:.0f} %"


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Returns at most `most` of the items, evenly chosen, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def scaled(largest: float, what: str = "s") -> tuple[float, str]:
    """Returns the factor for numbers as large as this, and their unit after it."""
    steps = {"s": [(1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "us")],
             "B": [(1e9, 1e-9, "GB"), (1e6, 1e-6, "MB"), (1e3, 1e-3, "kB"), (0.0, 1.0, "B")]}[what]  # fmt: skip
    return next((factor, unit) for least, factor, unit in steps if largest >= least)


def seconds_text(seconds: float) -> str:
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    factor, unit = scaled(seconds)
    return f"{number(seconds * factor)} {unit}"
