# SPDX-License-Identifier: Apache-2.0
"""Charts over steps or time, as SVG that fits any width: the plot is stretched, but texts beside it, in HTML, are not.

Each chart has a description for screen readers, and a table with all its numbers."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape

from atoll.report.parts import evenly, folded, keys, number, table

MAX_POINTS = 300  # per line; with more, means of neighbours are drawn
SIDE = 1000.0  # of the plot, in its own units
COLOURS = ("blue", "orange", "green", "purple", "amber", "sky", "brown", "grey")


@dataclass(frozen=True)
class Series:
    name: str
    values: Sequence[float | None]  # one for each place of the chart
    colour: str
    dots: bool = False  # instead of a line


@dataclass
class Chart:
    """A chart. `x` ascends. `marks` are vertical lines with texts."""

    title: str
    about: str
    x_name: str
    unit: str
    x: Sequence[float]
    series: Sequence[Series]
    is_stacked: bool = False
    is_stepped: bool = False  # values hold until the next one
    from_zero: bool = True
    marks: Sequence[tuple[float, str]] = field(default_factory=list)

    def html(self) -> str:
        chart = self._thinned()
        if not chart.x or not any(value is not None for each in chart.series for value in each.values):
            return ""
        low, high = chart._range()
        axis = _Axis(chart.x[0], chart.x[-1], low, high)
        legend = [(each.name, each.colour) for each in chart.series]
        x_ticks, y_ticks = ticks(axis.left, axis.right, 4), ticks(low, high, 4)
        grid = "".join(f'<path class="grid" d="M0 {axis.y(y):.1f}H{SIDE:.0f}"/>' for y in y_ticks)
        marks = "".join(
            f'<path class="mark" d="M{axis.x(x):.1f} 0V{SIDE:.0f}"><title>{escape(text)}</title></path>'
            for x, text in self.marks
            if axis.left <= x <= axis.right
        )
        shapes = chart._areas(axis) if self.is_stacked else chart._lines(axis)
        y_texts = "".join(
            f'<span style="bottom:{100 * (y - low) / (high - low):.2f}%">{number(y)}</span>' for y in y_ticks
        )
        x_texts = "".join(f'<span style="left:{axis.x(x) / SIDE * 100:.2f}%">{number(x)}</span>' for x in x_ticks)
        data = {"x": [_short(x) for x in chart.x], "name": self.x_name, "unit": self.unit,
                "series": [[each.name, [_short(value) for value in each.values]] for each in chart.series]}  # fmt: skip
        return (
            f'<figure class="chart"><figcaption><h3>{escape(self.title)}</h3><p>{escape(chart.about)}</p></figcaption>'
            f"{keys(legend, dashes=not self.is_stacked) if len(legend) > 1 else ''}"
            f'<div class="plot"><div class="y" aria-hidden="true"><b>{escape(self.unit)}</b>{y_texts}</div>'
            f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" tabindex="0" '
            f'aria-label="{escape(chart._said())}">{grid}{shapes}{marks}<path class="cursor" d=""/></svg>'
            f'<div class="x" aria-hidden="true">{x_texts}</div></div>'
            f'<p class="x-name">{escape(self.x_name)}<output aria-live="polite"></output></p>'
            f"{folded('As a table', chart._table())}"
            f'<script type="application/json">{json.dumps(data).replace("<", chr(92) + "u003c")}</script></figure>\n'
        )

    def _thinned(self) -> "Chart":
        if len(self.x) <= MAX_POINTS:
            return self
        width = math.ceil(len(self.x) / MAX_POINTS)
        starts = range(0, len(self.x), width)

        def value_at(start: int, values: Sequence[float | None]) -> float | None:
            if self.is_stepped:
                return values[start]
            there = [value for value in values[start : start + width] if value is not None]
            return sum(there) / len(there) if there else None

        series = [replace(each, values=[value_at(start, each.values) for start in starts]) for each in self.series]
        about = self.about if self.is_stepped else f"{self.about} Each point is the mean of {width}."
        return replace(self, about=about, x=[self.x[start] for start in starts], series=series)

    def _range(self) -> tuple[float, float]:
        if self.is_stacked:
            tops = [sum(each.values[place] or 0.0 for each in self.series) for place in range(len(self.x))]
        else:
            tops = [value for each in self.series for value in each.values if value is not None]
        high, low = max(tops), 0.0 if self.from_zero else min(tops)
        if high <= low:
            return (low, low + 1.0) if low == 0 else (low - abs(low) / 10, low + abs(low) / 10)
        room = (high - low) * 0.06
        return (0.0 if self.from_zero else low - room), high + room

    def _lines(self, axis: "_Axis") -> str:
        drawn = []
        for place, each in enumerate(self.series):
            if each.dots:
                path = "".join(
                    f"M{axis.x(x):.1f} {axis.y(value):.1f}h0"
                    for x, value in zip(self.x, each.values, strict=True)
                    if value is not None
                )
                drawn.append(f'<path class="dots c-{each.colour}" d="{path}"/>')
                continue
            path, is_down = "", False
            for x, value in zip(self.x, each.values, strict=True):
                if value is None:
                    is_down = False
                    continue
                if is_down and self.is_stepped:
                    path += f"H{axis.x(x):.1f}"
                path += f"{'L' if is_down else 'M'}{axis.x(x):.1f} {axis.y(value):.1f}"
                path += "" if is_down else "h0"  # a single value is a dot
                is_down = True
            drawn.append(f'<path class="line d{place % 4} c-{each.colour}" d="{path}"/>')
        return "".join(drawn)

    def _areas(self, axis: "_Axis") -> str:
        below = [0.0] * len(self.x)
        drawn = []
        places = [axis.x(x) for x in self.x]
        if len(places) == 1:
            places = [0.0, SIDE]
        for each in self.series:
            above = [base + (value or 0.0) for base, value in zip(below, each.values, strict=True)]
            tops, floors = ([*values] * (2 if len(values) == 1 else 1) for values in (above, below))
            there = [f"{x:.1f} {axis.y(y):.1f}" for x, y in zip(places, tops, strict=True)]
            back = [f"{x:.1f} {axis.y(y):.1f}" for x, y in zip(reversed(places), reversed(floors), strict=True)]
            drawn.append(f'<path class="area c-{each.colour}" d="M{"L".join(there + back)}Z"/>')
            below = above
        return "".join(drawn)

    def _said(self) -> str:
        """Returns a description of the chart."""
        told = []
        for each in self.series[:8]:
            there = [value for value in each.values if value is not None]
            if there:
                span = f"{number(min(there))} to {number(max(there))}"
                told.append(f"{each.name}: first {number(there[0])}, last {number(there[-1])}, {span} {self.unit}")
        marks = f" {len(self.marks)} marked places." if self.marks else ""
        return f"{self.title}. {self.x_name} {number(self.x[0])} to {number(self.x[-1])}. {'; '.join(told)}.{marks}"

    def _table(self) -> str:
        unit = f", {self.unit}" if self.unit else ""
        columns = [self.x_name, *(f"{each.name}{unit}" for each in self.series)]
        places = evenly(range(len(self.x)), 60)
        rows = [[number(self.x[at]), *(number(each.values[at]) for each in self.series)] for at in places]
        return table(columns, rows, self.title)


@dataclass(frozen=True)
class _Axis:
    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return SIDE * (value - self.left) / (self.right - self.left) if self.right > self.left else SIDE / 2

    def y(self, value: float) -> float:
        return SIDE - SIDE * (value - self.low) / (self.high - self.low)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Returns round numbers between the two."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 2.5, 5, 10) if size * times >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    found: list[float] = []
    while (first + len(found)) * step <= high * (1 + 1e-9) + 1e-300:
        found.append((first + len(found)) * step)
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
