# SPDX-License-Identifier: Apache-2.0
"""A small line chart as SVG, readable on light and dark pages."""

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 44, 50
COLOURS = ("#00897b", "#d81b60", "#5e6ad2", "#b8860b")


def log_log(title: str, x_name: str, y_name: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A chart with two logarithmic axes: x to base 2, y to base 10. All values must be above 0."""
    points = [point for line in lines.values() for point in line]
    x_low, x_high = (math.log2(pick(x for x, _ in points)) for pick in (min, max))
    y_low = math.floor(math.log10(min(y for _, y in points)))
    y_high = max(y_low + 1, math.ceil(math.log10(max(y for _, y in points))))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - x_low) / max(x_high - x_low, 1e-9)
        up = (math.log10(y) - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = opening(title, x_name, y_name)
    for exponent in range(y_low, y_high + 1):
        _, y = place(2**x_low, 10.0**exponent)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(label(LEFT - 8, y + 4, f"{10.0**exponent:g}", "end"))
    for value in sorted({x for x, _ in points}):
        x, y = place(value, 10.0**y_low)
        parts.append(label(x, y + 18, f"{value:g}", "middle"))
    for index, (name, line) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        corners = [place(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in corners]
        parts.append(label(LEFT + 14, TOP + 14 + 18 * index, name, "start", colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def label(x: float, y: float, text: str, anchor: str, colour: str = "#333333", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{text}</text>'


def opening(title: str, x_name: str, y_name: str) -> list[str]:
    """The start of a chart: its title and the names of its axes. The caller adds what is drawn, then "</svg>"."""
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        label(WIDTH / 2, 20, title, "middle", size=15),
        label(WIDTH / 2, HEIGHT - 10, x_name, "middle"),
        label(12, TOP - 10, y_name, "start"),
    ]
