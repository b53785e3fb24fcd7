# SPDX-License-Identifier: Apache-2.0
"""docs/results/papers.md is what its script writes, and has every figure and table of the five papers."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES_AND_TABLES = {
    "KAITIAN": (4, 0),
    "Joint training on AMD and NVIDIA GPUs": (5, 1),
    "BalanceNet Orchestrator": (7, 0),
    "Intra-DP": (8, 6),
    "Hybrid-Parallel": (9, 7),
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


def test_the_page_is_up_to_date(load: Any) -> None:
    written = (ROOT / "docs/results/papers.md").read_text()
    assert written == load("papers_page").page(), "run bench/papers_page.py"


@pytest.mark.parametrize("title", FIGURES_AND_TABLES)
def test_every_figure_and_table_has_a_row(load: Any, title: str) -> None:
    (paper,) = (paper for paper in load("papers_rows").read() if paper.title == title)
    figures, tables = FIGURES_AND_TABLES[title]
    expected = [f"figure {number}" for number in range(1, figures + 1)]
    expected += [f"table {number}" for number in range(1, tables + 1)]
    assert sorted(row.what for row in paper.rows) == sorted(expected)


def test_rows_say_what_they_measure_or_why_not(load: Any) -> None:
    scenarios = load("scenarios").SCENARIOS
    for row in (row for paper in load("papers_rows").read() for row in paper.rows):
        assert row.why
        assert not row.ours or (row.command and callable(getattr(load("papers_found"), row.ours.split()[0])))
        if row.command.startswith("bench/run.py "):
            assert row.command.split()[1] in scenarios
        if row.paper and not row.ours:
            assert "**Out of reach**" in row.why


def test_every_mean_of_the_papers_tables_is_on_the_page(load: Any) -> None:
    """Except those of Intra-DP's table 1, which has other systems."""
    page = load("papers_page")
    lines = {paper: page.cells(paper, "seconds") + page.cells(paper, "joules") for paper in page.NAMES}
    rows = [row for row in load("split_claims").published() if row["table"] != "Tab.1"]
    assert len(rows) == 116
    for row in rows:
        model = [line for line in lines[row["paper"]].splitlines() if line.startswith(f"| {row['model']} |")]
        for key in ("latency_mean_ms", "energy_J_mean"):
            assert any(f"| {row[key]:g} / " in line for line in model), row


def test_figures_of_the_guides_are_those_of_the_results(load: Any) -> None:
    kaitian, found = load("kaitian"), load("papers_found")
    rows = found.document("kaitian")["rows"]
    slow, fast = (kaitian.saved(rows, pair) for pair in ("2G", "2M"))
    saved = [f"save {slow:.0%} of the time of the slow pair and {fast:.0%} of that of the fast pair",
             f"{kaitian.of_ideal(rows, '2G+2M'):.0%} of the sum"]  # fmt: skip
    (links,) = (case["links"] for case in found.document("split_bytes")["cases"]
                if (case["profile"], case["encoding"]) == ("nsdi25_VGG19_BN", "compact"))  # fmt: skip
    means = {name: 1e3 * row["seconds"]["mean"] for name, row in links["outdoors"]["rows"].items()}
    answers = [f"{means['auto']:.0f} ms on average, {means['local']:.0f} ms alone"]
    figures, sets = load("pipelines_figures"), load("pipelines_sets")
    rows = found.document("pipelines")["parts"][0]["rows"]
    planner = load("pipelines_cases").PLANNER
    mixed = figures.row_of(rows, sets.MIXED, planner)
    by = [figures.by(mixed, figures.row_of(rows, layout, planner))["median"] for layout in (sets.FAST, sets.SLOW)]
    bound = figures.of_seconds(mixed, "bound_s")["median"]
    layers = [f"at {by[0]:.1%} of two fast devices' throughput and {by[1]:.0%} of two slow ones'",
              f"at {bound:.0%} of the planner's bound"]  # fmt: skip
    for guide, texts in (("mixed-gpus", saved), ("robot-and-server", answers), ("memory-bound", layers)):
        said = " ".join((ROOT / f"docs/guides/{guide}.md").read_text().split()).replace(" %", "%")
        for text in texts:
            assert text in said, f"{guide}: {text}"


def test_figures_of_pipelines_are_those_of_their_pages(load: Any) -> None:
    found = load("papers_found")
    pipelines, long = ((ROOT / f"docs/results/{name}.md").read_text() for name in ("pipelines", "pipelines_long"))
    parts = found.pipeline_throughput().split("; ")
    assert len(parts) == 2
    pages = pipelines.split("### Beside the paper")
    for text, before, part in zip(parts, pages, pages[1:], strict=False):
        fast, slow = re.findall(r"[\d.]+%", text)
        for bar, transport in found.TRANSPORTS.items():
            (tokens,) = re.findall(rf"{bar} (\d+)(?:,|$)", text)
            whole = re.search(rf"\| mixed \| {re.escape(transport)} \| the planner's \| [^|]* \| ([\d.]+) \(", before)
            assert whole is not None
            assert abs(float(whole[1]) - int(tokens)) <= 0.55
        assert re.search(rf"\| mixed by fast-fast \| [\d.]+% \| {re.escape(fast)} \(", part)
        assert re.search(rf"\| mixed by slow-slow \| [\d.]+% \| {re.escape(slow)} \(", part)
    for text, part in zip(found.pipeline_losses().split("; "), long.split("\n## ")[1:], strict=True):
        for layout, loss in re.findall(r"([a-z][a-z -]+) (\d\.\d{4})", text.replace("last loss ", "")):
            assert re.search(rf"\| {layout} \|.*\| {re.escape(loss)} \|", part), text


def test_a_missing_result_is_named(load: Any, tmp_path: Path) -> None:
    found = load("papers_found")
    with pytest.raises(found.MissingError):
        found.document("kaitian", tmp_path)
