# SPDX-License-Identifier: Apache-2.0
"""Plans as one self-contained HTML page."""

import json
import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from atoll.plan.documents import cost_of
from atoll.planning import table as tables
from atoll.planning.table import name_of, seconds_text
from atoll.report.page import page as html_page
from atoll.report.parts import Sentence, section, sentences, table

Document = dict[str, Any]
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")
_COMPUTE, _WAITING, _BOUND = "#0072b2", "#d9d9d9", "#d62728"
_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "pentagon", "hexagon", "star",
            "bowtie")  # fmt: skip
_MAX_POINTS = 300  # of a curve
_FAR = 2.5  # times the values of the others
_CONFIG = {"displaylogo": False, "responsive": True}


def page(document: Document) -> str:
    """Returns a page with the bars of all plans and the curves of all ranks, above the tables."""
    plans, title = document["plans"], f"Plans for {document['batch']} samples"
    said = [tables.verdict(document).removeprefix("Atoll: "), *tables.advice(document)]
    said += [f"{each['policy']} is left out: {each['reason']}" for each in document["left_out"]]
    is_cut = _range(document, "seconds") is not None
    about = "Bars of the literal forms extend beyond the chart." if is_cut else ""
    rows = [[*row, "; ".join(plan["notes"])] for row, plan in zip(tables.plan_rows(plans), plans, strict=True)]
    sections = [
        section("What each rank does in a step", _html(bars(document)), about=about),
        section("Seconds by batch, and the point of each rank under each policy", _html(curves(document))),
        section("Plans", table((*tables.PLANS, "notes"), rows, "Plans", numbers=False)),
        *(section(name, table(tables.METRICS, list(tables.metric_rows(ranks)), "What BalanceNet computes"))
          for name, ranks in tables.balancenet_ranks(document)),
        section("Ranks", table(tables.RANKS, list(tables.rank_rows(document["ranks"])), "Ranks", numbers=False)),
    ]  # fmt: skip
    head = f"<header><h1>{title}</h1></header>{sentences(Sentence(f'{line}.') for line in said)}"
    return html_page(f"Atoll: {title}", f"<script>{get_plotlyjs()}</script>{head}{''.join(sections)}")


def _html(figure: go.Figure) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG))


def bars(document: Document) -> go.Figure:
    """Returns bars with the computing and waiting time for each plan and rank, and the bound as a line."""
    plans = document["plans"]
    labels = _labels(plans[0]["names"])
    places: list[list[str]] = [[], []]
    computes: list[float] = []
    waits: list[float] = []
    hints: list[str] = []
    for plan in plans:
        # In lines, so that neighbouring names do not overlap.
        places[0] += [name_of(plan).replace("-", "-<br>").replace(" (", "<br>(")] * len(labels)
        places[1] += labels
        computes += plan["seconds"]
        waits += [plan["step"] - seconds for seconds in plan["seconds"]]
        hints += [f"{samples} samples" for samples in plan["batches"]]
    figure = go.Figure()
    hover = "%{x}<br>%{customdata}<br>%{y:.4g} s<extra>%{fullData.name}</extra>"
    for name, values, colour in (("computes", computes, _COMPUTE), ("waits", waits, _WAITING)):
        figure.add_bar(x=places, y=values, name=name, marker_color=colour, customdata=hints, hovertemplate=hover)
    bound = plans[0]["bound"]
    name = f"bound, {seconds_text(bound)}"
    figure.add_hline(bound, line_color=_BOUND, line_dash="dash", name=name, showlegend=True)
    figure.update_layout(barmode="stack", template="plotly_white", yaxis_title="seconds", legend_orientation="h",
                         legend_y=1.12, margin_t=40, height=480, xaxis_type="multicategory",
                         yaxis_range=_range(document, "seconds"))  # fmt: skip
    return figure


def curves(document: Document) -> go.Figure:
    """Returns the seconds by batch, one line for all ranks of the same cost, with the point of each rank in each
    plan."""
    plans = document["plans"]
    labels = _labels(plans[0]["names"])
    costs = [json.dumps(rank["cost"], sort_keys=True) for rank in document["ranks"]]
    kinds = list(dict.fromkeys(costs))
    colours = [_COLOURS[kinds.index(cost) % len(_COLOURS)] for cost in costs]
    width = _range(document, "batches")
    batches = _grid(1.1 * max(max(plan["batches"]) for plan in plans) if width is None else width[1])
    figure = go.Figure()
    for text in kinds:
        members = [place for place, cost in enumerate(costs) if cost == text]
        cost = cost_of(json.loads(text))
        figure.add_scatter(
            x=batches, y=[cost.seconds(batch) for batch in batches], mode="lines", hoverinfo="skip",
            name=_joined([labels[place] for place in members]), line_color=colours[members[0]],
        )  # fmt: skip
    for place, plan in enumerate(plans):
        figure.add_scatter(
            x=plan["batches"], y=plan["seconds"], mode="markers", name=name_of(plan), text=labels,
            hovertemplate="%{text}<br>%{x} samples<br>%{y:.4g} s<extra>%{fullData.name}</extra>",
            marker={"symbol": _SYMBOLS[place % len(_SYMBOLS)], "color": colours, "size": 11,
                    "line": {"color": "black", "width": 1}},
        )  # fmt: skip
    figure.update_layout(template="plotly_white", xaxis_title="samples in a step", yaxis_title="seconds", height=560,
                         margin_t=20, xaxis_range=width, yaxis_range=_range(document, "seconds"))  # fmt: skip
    return figure


def _labels(names: Sequence[str]) -> list[str]:
    return [f"{place} {name}".strip() for place, name in enumerate(names)]


def _joined(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _range(document: Document, numbers: str) -> list[float] | None:
    """Returns an axis range for the plans that divide the whole batch, if a literal form is far beyond them."""
    most = max(max(plan[numbers]) for plan in document["plans"])
    whole = [max(plan[numbers]) for plan in document["plans"] if plan["total"] == document["batch"]]
    return [0, 1.1 * max(whole)] if whole and most > _FAR * max(whole) else None


def _grid(end: float) -> list[int]:
    return sorted({math.ceil(max(2, end) * step / _MAX_POINTS) for step in range(_MAX_POINTS + 1)})
