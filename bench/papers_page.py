# SPDX-License-Identifier: Apache-2.0
"""Writes docs/results/papers.md: each figure and table of the five papers beside what is measured here.

bench/papers_page.py"""

from collections.abc import Iterator

import papers_found as found
import split_claims
from papers_rows import Paper, Row, read
from results import RESULTS, table

TITLE = "the five papers, figure by figure"
OPENING = """\
One row for each figure and table of the five papers: the command that measures the same here, the paper's numbers,
ours, and why they differ. `bench/papers_page.py` writes this page from this folder's JSON files and from the papers'
numbers (`bench/papers.toml`), which were copied by hand from the figure or table that the row names and from the text
about it. Where there is no command, nothing was measured.

**Out of reach here**: accelerators of AMD, NVIDIA, Cambricon and Huawei ([hardware](../hardware.md)); RDMA between
GPUs; robots, and with them SLAM, visual servoing and grasp planning, which KAITIAN names as future work (section V-D).
"""
SYSTEMS = {"Local": "local", "ALL": "offload", "DSCCS": "cut", "SPSO-GA": "energy", "Intra-DP": ""}
OWN = {split_claims.INTRA: "intra-dp", split_claims.HYBRID: "hybrid-parallel"}
SOURCES = {split_claims.INTRA: ("nsdi25",), split_claims.HYBRID: ("eurosys25", "nsdi25")}
NAMES = {split_claims.INTRA: "Intra-DP", split_claims.HYBRID: "Hybrid-Parallel"}
CELLS = """
The paper's mean / ours, as simulated with the policy of the same kind. `auto` is Atoll's; `-`: not in the paper, or
nothing published to compute it from.
"""


def page() -> str:
    text = f"---\nhide: [navigation, toc] # room for six columns\n---\n# {TITLE[0].upper()}{TITLE[1:]}\n\n{OPENING}"
    for paper in read():
        text += f"\n## {paper.title}\n\n{of_paper(paper)}"
    for paper_name in NAMES:
        text += f"\n## {NAMES[paper_name]}, latency, ms\n{CELLS}\n{cells(paper_name, 'seconds')}"
        text += f"\n## {NAMES[paper_name]}, energy, J\n{CELLS}\n{cells(paper_name, 'joules')}"
    return text


def of_paper(paper: Paper) -> str:
    titles = ["", "shows", "command", "the paper", "here", "why different"]
    return table(titles, [_line(row) for row in paper.rows]).replace("---:", "---")


def _line(row: Row) -> list[str]:
    function, *arguments = row.ours.split() or [""]
    try:
        ours = getattr(found, function)(*arguments) if function else "no measurement" if row.paper else ""
    except found.MissingError:
        ours = found.MISSING
    return [row.what, row.shows, f"`{row.command}`" if row.command else "", row.paper, ours, row.why]


def cells(paper: str, key: str) -> str:
    """Returns every mean of the tables that compare systems, beside the simulated one."""
    scale, column = (1e3, "latency_mean_ms") if key == "seconds" else (1, "energy_J_mean")
    lines = []
    for model, environment in _compared(paper):
        profile = _profile(paper, model)
        line = [model, environment]
        for system, policy in SYSTEMS.items():
            theirs = _theirs(paper, model, system, environment, column)
            ours = _ours(profile, environment, policy or OWN[paper], key, scale)
            line.append(f"{theirs} / {ours}")
        lines.append([*line, _ours(profile, environment, "auto, guarded", key, scale)])
    return table(["model", "", *list(SYSTEMS)[:-1], NAMES[paper], "`auto`"], lines)


def _compared(paper: str) -> Iterator[tuple[str, str]]:
    rows = split_claims.published()
    for model in dict.fromkeys(row["model"] for row in rows if row["paper"] == paper and row["system"] == "Intra-DP"):
        for environment in ("indoors", "outdoors"):
            yield model, environment


def _profile(paper: str, model: str) -> str | None:
    known = {case["profile"] for case in found.document("split_papers")["cases"]}
    names = (f"{source}_{split_claims.PROFILES[model]}" for source in SOURCES[paper])
    return next((name for name in names if name in known), None)


def _theirs(paper: str, model: str, system: str, environment: str, column: str) -> str:
    rows = split_claims.published()
    for place in (environment, "both"):
        row = split_claims.find(rows, paper=paper, model=model, system=system, environment=place)
        if row and row[column] is not None:
            return f"{row[column]:g}"
    return "-"


def _ours(profile: str | None, environment: str, policy: str, key: str, scale: float) -> str:
    return found.short(scale * found.mean(profile, environment, policy, key)) if profile else "-"


def write() -> None:
    (RESULTS / "papers.md").write_text(page())


if __name__ == "__main__":
    write()
