# SPDX-License-Identifier: Apache-2.0
"""Small plots as SVG: lines with marks on linear axes, and bars in groups. A plot without data says so."""

from collections.abc import Mapping, Sequence

from chart import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH, label, opening

MORE_COLOURS = (*COLOURS, "#6d4c41", "#455a64", "#7cb342")
Points = Sequence[tuple[float, float]]


def lines(
    title: str, x_name: str, y_name: str, of: Mapping[str, Points], marks: Mapping[str, Points] | None = None
) -> str:  # fmt: skip
    """`marks`: points with a name beside each, in the colour of the line with the same index."""
    marks = marks or {}
    points = [point for line in [*of.values(), *marks.values()] for point in line]
    if not points:
        return nothing(title)
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_high = max(y for _, y in points) * 1.08 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / max(x_high - x_low, 1e-9)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / y_high * (HEIGHT - TOP - BOTTOM)

    parts = _frame(title, x_name, y_name, y_high)
    for step in range(6):
        x, y = place(x_low + step / 5 * (x_high - x_low), 0)
        parts.append(label(x, y + 18, f"{x_low + step / 5 * (x_high - x_low):.3g}", "middle"))
    for index, (name, line) in enumerate(of.items()):
        colour = MORE_COLOURS[index % len(MORE_COLOURS)]
        corners = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in line)
        parts.append(f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(label(WIDTH - RIGHT - 10, TOP + 14 + 18 * index, name, "end", colour))
    for index, (name, found) in enumerate(marks.items()):
        colour = MORE_COLOURS[index % len(MORE_COLOURS)]
        for point in found:
            x, y = place(*point)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
            parts.append(label(x + 6, y - 6, name, "start", colour, size=11))
    return "\n".join([*parts, "</svg>"]) + "\n"


def bars(title: str, y_name: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Draws one group per name with one bar per entry; equal names have equal colours."""
    if not groups:
        return nothing(title)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    y_high = max(value for group in groups.values() for value in group.values()) * 1.08 or 1.0
    parts = _frame(title, "", y_name, y_high)
    width = (WIDTH - LEFT - RIGHT) / len(groups)
    for place, (of, group) in enumerate(groups.items()):
        left = LEFT + place * width + 0.1 * width
        each = 0.8 * width / len(group)
        for turn, (name, value) in enumerate(group.items()):
            tall = value / y_high * (HEIGHT - TOP - BOTTOM)
            colour = MORE_COLOURS[names.index(name) % len(MORE_COLOURS)]
            parts.append(
                f'<rect x="{left + turn * each:.1f}" y="{HEIGHT - BOTTOM - tall:.1f}" width="{each * 0.9:.1f}" '
                f'height="{tall:.1f}" fill="{colour}"/>'
            )
            parts.append(
                label(left + (turn + 0.45) * each, HEIGHT - BOTTOM - tall - 4, f"{value:.3g}", "middle", size=9)
            )
        parts.append(label(left + 0.4 * width, HEIGHT - BOTTOM + 18, of, "middle"))
    for index, name in enumerate(names):
        colour = MORE_COLOURS[index % len(MORE_COLOURS)]
        parts.append(label(WIDTH - RIGHT - 10, TOP + 14 + 16 * index, name, "end", colour))
    return "\n".join([*parts, "</svg>"]) + "\n"


def nothing(title: str) -> str:
    text = label(WIDTH / 2, HEIGHT / 2, "no figures: this machine could not keep the modelled times", "middle")
    return "\n".join([*opening(title, "", ""), text, "</svg>"]) + "\n"


def _frame(title: str, x_name: str, y_name: str, y_high: float) -> list[str]:
    parts = opening(title, x_name, y_name)
    for step in range(6):
        y = HEIGHT - BOTTOM - step / 5 / 1.08 * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(label(LEFT - 8, y + 4, f"{step / 5 / 1.08 * y_high:.3g}", "end"))
    return parts
