# SPDX-License-Identifier: Apache-2.0
"""A simulated step as one self-contained HTML page."""

from typing import Any

import plotly.graph_objects as go

from atoll.planning.simulate_table import verdict

Answer = dict[str, Any]
_COLOURS = {
    "forward": "#56b4e9", "backward": "#0072b2", "backward (input)": "#0072b2", "backward (weight)": "#009e73",
    "optimiser": "#7f7f7f", "transfer": "#e69f00",
}  # fmt: skip
_THIN = 0.25  # height of a transfer's bar, below its rank's bar


def page(answer: Answer, *, most_ranks: int) -> str:
    """Returns a page with a bar for each computation of the first ranks and a thin bar for each transfer; hovering
    shows the details."""
    figure = timeline(answer, most_ranks)
    return str(figure.to_html(include_plotlyjs=True, config={"displaylogo": False, "responsive": True}))


def timeline(answer: Answer, most_ranks: int) -> go.Figure:
    """Returns the picture of an answer's timeline."""
    ranks = answer["ranks"][:most_ranks]
    figure = go.Figure()
    for what, colour in _COLOURS.items():
        events = [event for event in answer["timeline"] if event["what"] == what and event["end"] > event["begin"]]
        events = [event for event in events if event["rank"] < len(ranks)]
        if not events:
            continue
        is_thin = what == "transfer"
        figure.add_bar(
            orientation="h", name=what, marker_color=colour, marker_line={"color": "white", "width": 0.5},
            y=[event["rank"] + (0.45 if is_thin else 0) for event in events], width=_THIN if is_thin else 0.6,
            x=[event["end"] - event["begin"] for event in events], base=[event["begin"] for event in events],
            customdata=[_hint(event) for event in events],
            hovertemplate="%{customdata}<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    labels = [f"{place} {rank['name']}" for place, rank in enumerate(ranks)]
    more = "" if len(ranks) == len(answer["ranks"]) else f"; ranks 0 to {len(ranks) - 1} of {len(answer['ranks'])}"
    figure.update_layout(
        barmode="overlay", template="plotly_white", title=verdict(answer) + more, xaxis_title="seconds",
        height=max(360, 120 + 44 * len(ranks)), legend_orientation="h",
        yaxis={"autorange": "reversed", "tickvals": list(range(len(ranks))), "ticktext": labels},
    )  # fmt: skip
    return figure


def _hint(event: Answer) -> str:
    times = f"{event['begin']:.6g} to {event['end']:.6g} s"
    if event["what"] == "transfer":
        return f"micro-batch {event['micro_batch']} from rank {event['rank']} to {event['peer']}<br>{times}"
    if event["what"] == "optimiser":
        return times
    return f"stage {event['stage']}, micro-batch {event['micro_batch']}<br>{times}"
