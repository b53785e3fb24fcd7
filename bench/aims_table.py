# SPDX-License-Identifier: Apache-2.0
"""Aims beside what was measured: one table from the result files, for docs/results and the README."""

import json
from pathlib import Path

from aims import AIMS
from results import table

# In README, with all that are missed.
HEADLINES = {
    "2 ranks, 64 KiB, one call",
    "2 ranks, 1 to 25 MiB, against Gloo",
    "2 ranks, 1 to 25 MiB, against Open MPI",
    "200 Mbit/s and 1 Gbit/s, of M/B",
    "two and four rails, of their sum",
    "islands of devices, against the relay, where 2x can be",
    "samples per second, of the ideal sum",
    "another device, against the best subset",
    "a device slows down: recovered in 100 steps",
    "real bytes: VGG19, outdoors",
    "mixed by slow-slow, beyond the paper's",
    "a plan of 131 items on 16 devices",
    "4 ranks ready, beyond Gloo's",
}


def summary(folder: Path, headlines: bool = False) -> str:
    """The table, from the files that are there. A figure is the worst case of its line. `headlines`: those, what is
    missed, and how many there are in all."""
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
        if headlines and met and aim.name not in HEADLINES:
            continue
        rows.append([aim.name, limit, f"{aim.spread(worst)}, {worst.case}", verdict])
    text = table(["figure", "aim", "worst case, and its spread", ""], rows)
    if headlines:
        text += (
            f"\nOf {sum(counts.values())} aims {counts['met']} are met: [all of them](docs/results/index.md#aims), and "
            "[what bounds those that are missed](docs/results/missed.md).\n"
        )
    return text
