# SPDX-License-Identifier: Apache-2.0
"""Results are kept in small files, and everything that was measured beside them."""

import hashlib
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
DOCUMENT: dict[str, Any] = {
    "scenario": "one",
    "commit": "c0ffee",
    "rows": [{"name": "a", "samples": [1 / 3] * 40, "median": 1 / 3}],
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


def report(_document: dict[str, Any]) -> str:
    return "A table.\n"


def medians(document: dict[str, Any]) -> dict[str, Any]:
    return {"medians": [row["median"] for row in document["rows"]]}


def test_all_samples_are_kept_where_nothing_is_left_out(load: Any, tmp_path: Path) -> None:
    path = load("result_files").store("one", SimpleNamespace(TITLE="one", report=report), DOCUMENT, tmp_path)
    text = path.read_text()
    assert json.loads(text)["rows"][0] == {"name": "a", "samples": [0.333333] * 40, "median": 0.333333}
    assert max(map(len, text.splitlines())) <= 120
    assert [each.name for each in tmp_path.iterdir()] == ["one.json"]


def test_what_pages_leave_out_is_beside_them(load: Any, tmp_path: Path) -> None:
    files = load("result_files")
    scenario = SimpleNamespace(TITLE="one", report=report, PAGES={"two": files.Part("two", report, medians)})
    files.store("one", scenario, DOCUMENT, tmp_path)
    samples = (tmp_path / "samples/one.json").read_bytes()
    assert json.loads(samples) == json.loads((tmp_path / "one.json").read_text())
    mark = {"file": "samples/one.json", "sha256": hashlib.sha256(samples).hexdigest()}
    second = json.loads((tmp_path / "two.json").read_text())
    assert second == {"scenario": "one", "commit": "c0ffee", "samples": mark, "medians": [0.333333]}
    page = load("report").page("two", scenario.PAGES["two"], {**second, "simulated": "nothing", "command": "x"})
    assert page.startswith("# Two\n\nSimulated on nothing")
    assert mark["sha256"] in page
    files.store("one", scenario, json.loads(samples), tmp_path)  # from the samples, as bench/run.py --samples does
    assert (tmp_path / "samples/one.json").read_bytes() == samples
    assert json.loads((tmp_path / "two.json").read_text()) == second


def test_dense_text_is_the_same_value(load: Any) -> None:
    dense = load("result_files").dense
    for value in ([], {}, [{"a": [0.5] * 200}, {"b": ["x" * 100, "y" * 100], "c": None}], {"deep": [[["z" * 130]]]}):
        assert json.loads(dense(value)) == value


def test_pages_that_leave_something_out_say_where_it_is() -> None:
    marked = {path.stem: json.loads(path.read_text()).get("samples") for path in RESULTS.glob("*.json")}
    marked = {name: mark for name, mark in marked.items() if mark}
    assert {"balancenet", "reliability", "split_bytes", "split_papers_rates"} <= set(marked)
    for name, mark in marked.items():
        page = (RESULTS / f"{name}.md").read_text()
        assert mark["sha256"] in page, name
        assert mark["file"] in page, name
