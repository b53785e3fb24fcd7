# SPDX-License-Identifier: Apache-2.0
"""The page and the plots of pipelines_long.json."""

from typing import Any

import plots
import uneven
from bridge import rate_text
from pipelines_figures import loss_apart, settled, width, windows
from pipelines_tables import plain, rate
from results import table

Document = dict[str, Any]
SHOWN = 10  # steps per point of a plot


def report(document: Document) -> str:
    chunk = document["parts"][0]["long"]["chunk"]
    text = (
        "The models, devices and links of [the paper's experiment](pipelines.md), divided as the planner does it, over "
        f"dcbs and a link of {rate_text(document['rate'])}, in turns of {chunk} iterations. {uneven.MODELLED} The "
        "spread is of 80 % of single iterations, by the median, without the first of each turn. Losses are compared "
        "with those of one process that trains the whole model on the CPU, as means of up to 20 iterations.\n"
    )
    return text + "".join(_part(part) for part in document["parts"])


def _part(part: Document) -> str:
    of, name = part["long"], plain(part["pair"]["name"])
    text = (
        f"\n## {part['pair']['name']}: {len(of['alone'])} iterations\n\n"
        f"![Throughput](pipelines-{name}-steps.svg)\n\n![Loss](pipelines-{name}-loss.svg)\n\n"
    )
    cells = []
    for row in of["rows"]:
        rates = settled(row, of["chunk"])
        cells.append([
            row["layout"], uneven.figure(row, rate(rates)), uneven.figure(row, f"{width(rates):.2%}"),
            f"{windows(row['losses'])[-1]:.4f}", f"{loss_apart(row['losses'], of['alone']):.3%}",
        ])  # fmt: skip
    cells.append(["one process", "", "", f"{windows(of['alone'])[-1]:.4f}", ""])
    return text + table(["devices", "tokens/s", "spread", "last loss", "off one process, at most"], cells)


def plots_of(parts: list[Document]) -> dict[str, str]:
    """Returns the plots by name."""
    drawn = {}
    for part in parts:
        name = plain(part["pair"]["name"])
        of = {row["layout"]: row for row in part["long"]["rows"]}
        rates = {layout: _means(row["tokens_s"]) for layout, row in of.items() if not row["late"]}
        title = f"{part['pair']['name']}: tokens per second, means of {SHOWN} iterations"
        drawn[f"pipelines-{name}-steps"] = plots.lines(title, "iteration", "tokens/s", rates)
        losses = {layout: _means(row["losses"]) for layout, row in of.items()}
        losses["one process"] = _means(part["long"]["alone"])
        title = f"{part['pair']['name']}: loss, means of {SHOWN} iterations"
        drawn[f"pipelines-{name}-loss"] = plots.lines(title, "iteration", "loss", losses)
    return drawn


def _means(values: list[float]) -> list[tuple[float, float]]:
    size = min(SHOWN, len(values))
    return [
        (first + size, sum(values[first : first + size]) / size) for first in range(0, len(values) - size + 1, size)
    ]
