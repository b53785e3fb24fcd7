# SPDX-License-Identifier: Apache-2.0
"""docs/testing.md has the results of fuzzing, and says how every target is run."""

import os
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/testing.md"
LOG = """commit 1a2b3c4-dirty, day 2026-11-25
INFO: Running with entropic power schedule (0xFF, 100).
INFO: Loaded 1 modules   (4711 inline 8-bit counters): 4711 [0x1, 0x2),
#2\tINITED cov: 30 ft: 31 corp: 1/1b exec/s: 0 rss: 30Mb
#1048576\tpulse  cov: 200 ft: 950 corp: 90/3Kb lim: 4096 exec/s: 300000 rss: 400Mb
#1500000\tDONE   cov: 210 ft: 999 corp: 99/4Kb lim: 4096 exec/s: 250000 rss: 401Mb
Done 1500000 runs in 6 second(s)
stat::number_of_executed_units: 1500000
"""


@pytest.fixture(scope="module")
def fuzzing() -> SimpleNamespace:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return SimpleNamespace(**runpy.run_path(str(ROOT / "scripts/fuzzing.py")))
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_the_numbers_of_a_run_are_read(fuzzing: SimpleNamespace) -> None:
    numbers = (6, 1_500_000, 210, 4711, 999)
    assert fuzzing.read_log("x", LOG, False) == fuzzing.Fuzzed("x", False, *numbers, "1a2b3c4-dirty", "2026-11-25")
    before = LOG.partition("\n")[2]
    assert fuzzing.read_log("x", before, False) == fuzzing.Fuzzed("x", False, *numbers, "-", "-")
    assert fuzzing.read_log("x", "killed", True) == fuzzing.Fuzzed("x", True)


def test_the_table_takes_the_place_between_the_marks(fuzzing: SimpleNamespace) -> None:
    results = [fuzzing.read_log("b", LOG, False), fuzzing.read_log("a", LOG, True)]
    page = fuzzing.page_with(PAGE.read_text(), fuzzing.table(results))
    assert page.count("| `a` | 6 | 1,500,000 | 210 of 4,711 | 999 | **yes** | 1a2b3c4-dirty | 2026-11-25 |") == 1
    assert fuzzing.rows_of(page) == sorted(results, key=lambda each: each.name)
    assert page.index("| `a`") < page.index("| `b`")
    assert "2 targets, 3,000,000 executions." in page
    assert fuzzing.page_with(page, fuzzing.NOT_YET).count(fuzzing.NOT_YET) == 1
    with pytest.raises(ValueError, match="marks"):
        fuzzing.page_with("a page", "a table")


def test_the_page_says_whether_there_was_a_run(fuzzing: SimpleNamespace) -> None:
    content = PAGE.read_text().partition(fuzzing.BEGIN)[2].partition(fuzzing.END)[0].strip()
    targets = {path.name.removesuffix("_fuzz.cpp") for path in (ROOT / "tests/fuzz").glob("*_fuzz.cpp")}
    listed = {line.split("`")[1] for line in content.splitlines() if line.startswith("| `")}
    assert content == fuzzing.NOT_YET or (listed and listed <= targets)
    assert {each.name for each in fuzzing.rows_of(PAGE.read_text())} == listed


def test_a_run_notes_what_it_ran_and_when(fuzzing: SimpleNamespace) -> None:
    assert re.fullmatch(r"commit \S+, day \d{4}-\d\d-\d\d\n", fuzzing.was_run())
    log = fuzzing.was_run() + LOG.partition("\n")[2]
    assert fuzzing.was_run() == "commit {0.commit}, day {0.day}\n".format(fuzzing.read_log("x", log, False))


def test_rows_of_earlier_runs_stay_and_say_that_nothing_was_noted(
    fuzzing: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = "| `{}` | 601 | 9,238,506 | 422 of 119,985 | 1,277 | no |"
    old = "\n".join(
        [*(row.format(name) for name in ("address", "graph", "gone")), row.format("roll_call") + " a1 | d1 |"]
    )
    page = tmp_path / "testing.md"
    page.write_text(fuzzing.page_with(PAGE.read_text(), old))
    names = fuzzing.record.__globals__
    monkeypatch.setitem(names, "BUILD", tmp_path)
    monkeypatch.setitem(names, "PAGE", page)
    path = fuzzing.log_of(tmp_path / "graph_fuzz", fuzzing.LONG_SECONDS)
    path.parent.mkdir(parents=True)
    path.write_text(LOG)
    fuzzing.record()
    rows = {each.name: each for each in fuzzing.rows_of(page.read_text())}
    assert set(rows) == {"address", "graph", "roll_call"}
    assert (rows["address"].executions, rows["address"].commit, rows["address"].day) == (9_238_506, "-", "-")
    assert (rows["roll_call"].commit, rows["roll_call"].day) == ("a1", "d1")
    assert rows["graph"] == fuzzing.read_log("graph", LOG, False)
    assert "3 targets, " in page.read_text()


def test_what_is_left_of_a_long_run(fuzzing: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzzing.left.__globals__, "BUILD", tmp_path)
    targets = []
    for name, log in (("done", LOG), ("never", None), ("killed", "INFO"), ("found", LOG.replace("Done", "SUMMARY"))):
        target = tmp_path / f"{name}_fuzz"
        target.touch()
        os.utime(target, (1, 1))
        targets.append(target)
        if log:
            path = fuzzing.log_of(target, fuzzing.LONG_SECONDS)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(log)
    assert [path.name for path in fuzzing.left(targets)] == ["never_fuzz", "killed_fuzz", "found_fuzz"]
    os.utime(targets[0])  # built again
    os.utime(fuzzing.log_of(targets[0], fuzzing.LONG_SECONDS), (2, 2))
    assert targets[0] in fuzzing.left(targets)


def test_each_target_that_ends_is_in_the_table(
    fuzzing: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "testing.md"
    page.write_text(PAGE.read_text())
    names = fuzzing.record.__globals__
    monkeypatch.setitem(names, "BUILD", tmp_path)
    monkeypatch.setitem(names, "PAGE", page)
    fuzzing.record()
    assert page.read_text() == PAGE.read_text()
    for name, log in (("one", LOG), ("killed", "INFO"), ("two", LOG.replace("Done", "SUMMARY"))):
        path = fuzzing.log_of(tmp_path / f"{name}_fuzz", fuzzing.LONG_SECONDS)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log)
    fuzzing.record()
    rows = [each for each in fuzzing.rows_of(page.read_text()) if each.all_edges == 4711]
    assert [(each.name, each.found) for each in rows] == [("one", False), ("two", True)]
