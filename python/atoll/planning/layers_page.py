# SPDX-License-Identifier: Apache-2.0
"""A plan of layers as one self-contained HTML page."""

from importlib import resources
from typing import Any

import jinja2
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from atoll.planning.layers_table import bytes_text, different, items_text, verdict
from atoll.planning.table import seconds_text

Document = dict[str, Any]
_COLOURS = {"forward": "#0072b2", "backward": "#009e73", "send": "#e69f00", "waits": "#d9d9d9"}
_CONFIG = {"displaylogo": False, "responsive": True}


def page(answer: Document) -> str:
    """Returns the page: a lane for each stage of each distinct pipeline, with tables; if nothing fits, those of the
    nearest plans."""
    if answer.get("pipelines"):
        shown = list(different(answer["pipelines"]))
    else:
        shown = [(f"With {each['text']}", each["pipelines"][0]) for each in answer["nearest"]]
    charts = [(title, pipeline, _html(lanes(pipeline))) for title, pipeline in shown]
    template = resources.files("atoll.planning").joinpath("layers.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"seconds": seconds_text, "bytes": bytes_text, "items": items_text}
    return environment.from_string(template).render(
        answer=answer, verdict=verdict(answer), notes=answer.get("notes", []), plotly=get_plotlyjs(), charts=charts
    )


def _html(figure: go.Figure) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=_CONFIG))


def lanes(pipeline: Document) -> go.Figure:
    """Returns the activity of each stage per micro-batch in the steady state, up to the longest stage."""
    stages = pipeline["stages"]
    labels = [f"{place} {stage['device']}" for place, stage in enumerate(stages)]
    figure = go.Figure()
    for name in ("forward", "backward", "send", "waits"):
        values = [_part(stage, pipeline["period"], name) for stage in stages]
        figure.add_bar(y=labels, x=values, name=name, orientation="h", marker_color=_COLOURS[name],
                       customdata=[items_text(stage) for stage in stages],
                       hovertemplate="%{y}<br>%{customdata}<br>%{x:.4g} s<extra>%{fullData.name}</extra>")  # fmt: skip
    figure.update_layout(barmode="stack", template="plotly_white", xaxis_title="seconds of a micro-batch",
                         yaxis_autorange="reversed", legend_orientation="h", legend_y=1.12, margin_t=40,
                         height=160 + 36 * len(stages))  # fmt: skip
    return figure


def _part(stage: Document, period: float, name: str) -> float:
    if name == "waits":
        return max(0.0, period - float(stage["seconds"]))
    if name == "send":  # the part for which the device waits
        return max(0.0, float(stage["seconds"]) - float(stage["forward"]) - float(stage["backward"]))
    return float(stage[name])
