# SPDX-License-Identifier: Apache-2.0
"""Plans of divided inferences as one self-contained HTML page."""

from html import escape
from typing import Any

from atoll.infer.planning.table import PLANS, REPLAYS, headline, plan_rows, replay_rows, verdict
from atoll.report.lanes import lanes
from atoll.report.page import page as html_page
from atoll.report.parts import Sentence, section, sentences, table


def page(document: dict[str, Any]) -> str:
    """Returns a page with the tables, and a picture of each plan with lanes for robot, link and server."""
    title = f"{document['model']} on a robot and a server"
    said = [*headline(document), verdict(document).removeprefix("Atoll: "), *document["notes"]]
    body = f"<header><h1>{escape(title)}</h1></header>{sentences(Sentence(f'{line}.') for line in said)}"
    body += section("Plans", table(PLANS, list(plan_rows(document)), "Plans"))
    if replays := document.get("replay"):
        rows = [[*row, str(each["inferences"])] for row, each in zip(replay_rows(document), replays, strict=True)]
        about = f"Inferences over {document['trace']['file']}"
        body += section(about, table((*REPLAYS, "inferences"), rows, "Replays"))
    names, bound = document["names"], document["bound"]["seconds"]
    drawn = [lanes({"name": plan["policy"], "operators": names, "plan": plan}, bound) for plan in document["plans"]]
    body += section("What each machine does", *drawn, about="The dashed line is the bound: no plan ends before it.")
    return html_page(f"Atoll: {title}", body)
