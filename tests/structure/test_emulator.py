# SPDX-License-Identifier: Apache-2.0
"""Every test that is left out under an emulator exists and has a reason; docs/small-computers.md has the results of
the others."""

import importlib
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs/small-computers.md"
LISTED = re.compile(r"^    (\S+)(  # .+)?$", re.MULTILINE)
DEFINED = re.compile(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", re.MULTILINE)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module


def test_what_an_emulator_leaves_out(load: Any) -> None:
    text = (TESTS / "emulator.cmake").read_text()
    listed = LISTED.findall(text)
    texts = [path.read_text() for path in TESTS.rglob("*_test.cpp")]
    defined = [f"{suite}.{name}" for text in texts for suite, name in DEFINED.findall(text)]
    assert listed
    assert defined
    assert [pattern for pattern, reason in listed if not reason] == []
    assert [pattern for pattern, _ in listed if not any(fnmatch(name, pattern) for name in defined)] == []
    assert load("emulated").left_out(text) == [pattern for pattern, _ in listed]


def test_the_page_says_whether_there_was_a_run(load: Any) -> None:
    emulated = load("emulated")
    content = PAGE.read_text().partition(emulated.BEGIN)[2].partition(emulated.END)[0].strip()
    row = r"\| [\d,]+ \| (0|\*\*[\d,]+\*\*) \| [\d,]+ \| .* \| \d+ \| \d{4}-\d\d-\d\d \| [\w-]+ \|"
    assert content == emulated.NOT_YET or re.fullmatch(row, content.splitlines()[-1])


@pytest.mark.parametrize(("failed", "said"), [(0, "| 1,200 | 0 | 3 |"), (2, "| 1,198 | **2** | 3 |")])
def test_a_run_writes_its_outcome(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: int, said: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    run_tests, emulated = load("run_tests"), load("emulated")
    record = emulated.record
    monkeypatch.setattr(run_tests, "run_preset", lambda name: run_tests.Outcome(name, 1200, failed, 3))
    monkeypatch.setattr(emulated, "record", lambda *counts: record(*counts, page=page))
    (outcome,) = run_tests.outcomes_of("aarch64")
    assert outcome.good == (failed == 0)
    text = page.read_text()
    assert text.count(said) == 1
    assert emulated.NOT_YET not in text
    assert "| `Sandbox.*`" in text
    written = text
    run_tests.outcomes_of("aarch64")
    assert page.read_text() == written, "the second run replaces the first"


def test_no_result_changes_nothing(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tests, emulated = load("run_tests"), load("emulated")
    monkeypatch.setattr(run_tests, "run_preset", lambda name: run_tests.Outcome(name, broken="it does not build"))
    monkeypatch.setattr(emulated, "record", lambda *_: pytest.fail("recorded"))
    assert not run_tests.outcomes_of("aarch64")[0].good
