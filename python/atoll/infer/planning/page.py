# SPDX-License-Identifier: Apache-2.0
"""Plans of divided inferences as one self-contained HTML page."""

from collections.abc import Iterator
from importlib import resources
from typing import Any

import jinja2

from atoll.infer.planning.rates import bytes_text, rate_text
from atoll.infer.planning.table import headline, name_of, verdict
from atoll.planning.table import seconds_text

Document = dict[str, Any]
LANES = ("robot", "up", "down", "server")
_WIDTH, _LEFT, _LANE, _TOP = 1160, 70, 34, 6  # of a picture, in pixels
_LEAST = 0.4  # minimum width of a visible event, in pixels
_COLOURS = {"robot": "#0072b2", "up": "#e69f00", "down": "#cc79a7", "server": "#009e73"}
_ROOM_FOR_NAME = 7.0  # pixels per letter


def page(document: Document) -> str:
    """Returns a page with a picture of each plan, with lanes for robot, link and server on a common time scale, and the
    tables."""
    template = resources.files("atoll.infer.planning").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"seconds": seconds_text, "bytes": bytes_text, "rate": rate_text, "name_of": name_of}
    pictures = [{"plan": plan, **picture(document, plan)} for plan in document["plans"]]
    return environment.from_string(template).render(
        document=document, headline=list(headline(document)), verdict=verdict(document), pictures=pictures, lanes=LANES,
        width=_WIDTH, height=_TOP + len(LANES) * _LANE + 24, left=_LEFT, lane=_LANE, top=_TOP, colours=_COLOURS,
    )  # fmt: skip


def picture(document: Document, plan: Document) -> Document:
    """Returns the drawing of one plan: boxes, ticks on the time axis, and the positions of the bound and the end."""
    end = max(plan["seconds"], document["bound"]["seconds"], 1e-9)
    scale = (_WIDTH - _LEFT - 20) / end
    return {
        "boxes": list(_boxes(document, plan, scale)),
        "marks": [{"x": _LEFT + end * scale * step / 5, "text": seconds_text(end * step / 5)} for step in range(6)],
        "bound": _LEFT + document["bound"]["seconds"] * scale,
    }


def _boxes(document: Document, plan: Document, scale: float) -> Iterator[Document]:
    for lane, index, begin, end in plan["events"]:
        if begin is None or end is None or end <= begin:
            continue
        name = document["names"][index]
        width = max((end - begin) * scale, _LEAST)
        robot, server = plan["shares"][index]
        rows = {"robot": robot, "server": server}.get(lane)
        part = f", rows {rows[0]} to {rows[1]}" if rows else ""
        yield {
            "x": _LEFT + begin * scale, "y": _TOP + LANES.index(lane) * _LANE, "width": width, "colour": _COLOURS[lane],
            "name": name if width > _ROOM_FOR_NAME * len(name) else "",
            "hint": f"{index} {name}{part}: {seconds_text(begin)} to {seconds_text(end)}",
        }  # fmt: skip
