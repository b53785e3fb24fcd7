# SPDX-License-Identifier: Apache-2.0
"""Aims beside what was measured: one table from the result files, for docs/results and the README."""

import json
from pathlib import Path

from aims import AIMS
from results import table

# The rows of the README, whether met or missed.
HEADLINES = {
    "2 ranks, 1 to 25 MiB, against Gloo",
    "200 Mbit/s and 1 Gbit/s, of M/B",
    "samples per second, of the ideal sum",
    "real bytes: VGG19, outdoors",
    "mixed pipeline, of the planner's bound",
}


def summary(folder: Path, headlines: bool = False) -> str:
    """Returns the table made from the result files that exist. Each figure is the worst case of its line. With
    `headlines`: only the headlines, each with a link to its page, followed by the total count."""
    rows: list[list[str]] = []
    counts = {"met": 0, "**missed**": 0}
    for aim in AIMS:
        path = folder / f"{aim.scenario}.json"
        limit = f"at {'most' if aim.at_most else 'least'} {aim.text(aim.limit)}"
        judged = aim.judge(json.loads(path.read_text())) if path.exists() else None
        if judged is None and not headlines:
            rows.append([aim.name, limit, "not measured", ""])
        if judged is None:
            continue
        worst, met = judged
        verdict = "met" if met else "**missed**"
        counts[verdict] += 1
        if headlines and aim.name not in HEADLINES:
            continue
        name = f"[{aim.name}](docs/results/{aim.scenario}.md)" if headlines else aim.name
        rows.append([name, limit, f"{aim.spread(worst)}, {worst.case}", verdict])
    text = table(["figure", "aim", "worst case, and its spread", ""], rows)
    if headlines:
        text += (
            f"\nOf {sum(counts.values())} aims {counts['met']} are met: [all of them](docs/results/index.md#aims), and "
            "[what bounds those that are missed](docs/results/missed.md).\n"
        )
    return text
