# SPDX-License-Identifier: Apache-2.0
"""A plan of layers as one self-contained HTML page."""

from typing import Any

from atoll.planning.layers_table import STAGES, different, stage_rows, verdict
from atoll.report.page import page as html_page
from atoll.report.parts import Bar, Sentence, bars, scaled, section, sentences, table

Document = dict[str, Any]
_LEGEND = (("forward", "blue"), ("backward", "green"), ("send", "amber"), ("waits", "grey"))


def page(answer: Document) -> str:
    """Returns the page: a bar for each stage of each distinct pipeline, with tables; if nothing fits, those of the
    nearest plans."""
    if answer.get("pipelines"):
        shown = list(different(answer["pipelines"]))
    else:
        shown = [(f"With {each['text']}", each["pipelines"][0]) for each in answer["nearest"]]
    said = [line.removeprefix("Atoll: ") for line in verdict(answer)] + answer.get("notes", [])
    body = f"<header><h1>Layers by device</h1></header>{sentences(Sentence(f'{line}.') for line in said)}"
    for title, pipeline in shown:
        rows = list(stage_rows(pipeline))
        body += section(title, _bars(pipeline), table(STAGES, rows, "Stages", numbers=False))
    return html_page("Atoll: layers by device", body)


def _bars(pipeline: Document) -> str:
    factor, unit = scaled(pipeline["period"])
    rows = []
    for place, stage in enumerate(pipeline["stages"]):
        forward, backward, seconds = (float(stage[name]) for name in ("forward", "backward", "seconds"))
        sends = max(0.0, seconds - forward - backward)  # the part for which the device waits
        waits = max(0.0, float(pipeline["period"]) - seconds)
        rows.append(Bar(f"{place} {stage['device']}", [part * factor for part in (forward, backward, sends, waits)]))
    about = "What each stage does with a micro-batch in the steady state, up to the longest stage."
    return bars("A micro-batch on each stage", about, _LEGEND, rows, unit)
