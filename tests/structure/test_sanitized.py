# SPDX-License-Identifier: Apache-2.0
"""docs/testing.md has the results of the tests under the sanitizers, written by `make verify`."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/testing.md"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module


def test_the_page_says_whether_there_was_a_run(load: Any) -> None:
    sanitized = load("sanitized")
    content = PAGE.read_text().partition(sanitized.BEGIN)[2].partition(sanitized.END)[0].strip()
    row = r"\| [a-z ()]+ \| [\d,]+ \| (0|\*\*[\d,]+\*\*) \| [\d,]+ \| \d+ \| \d{4}-\d\d-\d\d \| [\w-]+ \|"
    rows = content.splitlines()[2:]
    assert content == sanitized.NOT_YET or [bool(re.fullmatch(row, line)) for line in rows] == [True, True]


def test_a_run_writes_its_outcome(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    run_tests, sanitized = load("run_tests"), load("sanitized")
    record = sanitized.record
    failed = {"asan": 0, "tsan": 2}
    monkeypatch.setattr(run_tests, "run_preset", lambda name: run_tests.Outcome(name, 1200, failed[name], 3))
    monkeypatch.setattr(sanitized, "record", lambda runs, built: record(runs, built, page=page))
    assert [outcome.good for outcome in run_tests.run_sanitizers()] == [True, False]
    text = page.read_text()
    assert text.count("| address (with leaks) and undefined behaviour | 1,200 | 0 | 3 |") == 1
    assert text.count("| threads | 1,198 | **2** | 3 |") == 1
    assert sanitized.NOT_YET not in text


def test_no_result_changes_nothing(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tests, sanitized = load("run_tests"), load("sanitized")
    monkeypatch.setattr(run_tests, "run_preset", lambda name: run_tests.Outcome(name, broken="it does not build"))
    monkeypatch.setattr(sanitized, "record", lambda *_: pytest.fail("recorded"))
    assert not any(outcome.good for outcome in run_tests.run_sanitizers())
