# SPDX-License-Identifier: Apache-2.0
"""Faults given to every contender: a rank's fates, the rank that a message names, and the page."""

import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from test_bench import ROOT, run_scenarios


@pytest.fixture
def reliability(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("reliability")


@pytest.fixture
def faults(reliability: ModuleType) -> ModuleType:
    return importlib.import_module("reliability_faults")


def event(name: str, at: float, text: str = "") -> dict[str, Any]:
    return {"event": name, "at": at, "text": text}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("all_reduce #7 on rank 0: the connection to rank 1 was closed", True),
        ("all_reduce #7 on rank 1: the connection to rank 0 was closed", False),
        ("ranks 0, 1 did not come", True),
        ("ranks 0 and 1 did not come", True),
        ("rank 11 did not come", False),
        ("Connection closed by peer [127.0.0.1]:1111", False),
        ("mpirun noticed that process rank 1 with PID 0 exited on signal 9", True),
        ("Process name: [[7,1],1] Exit code: 0", True),
        ("all_reduce #7 on rank 0 met broadcast #7 on rank 1", True),
        ("Process name: [[7,1],2] Exit code: 1", False),
    ],
)
def test_the_named_rank(faults: ModuleType, text: str, named: bool) -> None:
    assert faults.names_rank(text, 1) == named


def test_fates(faults: ModuleType) -> None:
    fate = faults.fate
    steps = [event("running", 1.0), *(event("step", float(at)) for at in range(1, 10))]
    assert fate([*steps, event("error", 10.5, "rank 1")], 10.0, None, "") == {
        "kind": "error", "seconds": 0.5, "text": "rank 1"}  # fmt: skip
    again = fate([*steps, event("error", 10.5), event("recovered", 11.5)], 10.0, 12.0, "words")
    assert (again["again"], again["again_s"]) == ("recovered", 1.0)
    assert fate([*steps, event("wrong", 11.0, "3")], 10.0, 11.0, "")["kind"] == "wrong values"
    assert fate(steps, 9.0, 12.0, "killed") == {"kind": "ended", "seconds": 3.0, "text": "killed"}
    assert fate(steps, 9.0, None, "")["kind"] == "silent"
    assert fate(steps, 2.0, None, "")["kind"] == "went on"


def test_summaries(reliability: ModuleType) -> None:
    found = reliability.summarise([
        {"kind": "error", "seconds": 0.1, "text": "rank 1", "again": "recovered", "again_s": 0.2, "again_text": ""},
        {"kind": "error", "seconds": 0.3, "text": "no name", "again": "not recovered", "again_s": 9.0},
        {"kind": "silent", "text": ""},
    ], 1)  # fmt: skip
    assert found["kinds"] == {"error": 2, "silent": 1}
    assert found["seconds"]["median"] == pytest.approx(0.2)
    assert found["named"] == 0.5
    assert found["again"] == pytest.approx(1 / 3)
    assert found["again_s"]["median"] == 0.2
    assert reliability.kinds_text(found) == "an exception (2 of 3), waits on (1 of 3)"
    assert reliability.time_text(found, 60) == "200 ms (120 ms to 280 ms)"
    ours = reliability.summarise([
        {"kind": "error", "seconds": 9.0, "text": "rank 1", "busy": True, "rank": 0},
        {"kind": "error", "seconds": 0.1, "text": "rank 1", "rank": 0},
        {"kind": "error", "seconds": 0.1, "text": "no name", "rank": 1},
    ], 1)  # fmt: skip
    assert (ours["seconds"]["p90"], ours["named"]) == (pytest.approx(0.1), 1)
    busy = reliability.summarise([{"kind": "error", "seconds": 9.0, "text": "", "busy": True, "rank": 0}], 1)
    assert reliability.time_text(busy, 60) == "9.0 s (9.0 s to 9.0 s), busy"
    silent = reliability.summarise([{"kind": "silent", "text": ""}], 1)
    assert reliability.time_text(silent, 60) == "none in 60 s"
    assert reliability.again_text(silent) == "no"


def test_the_page(reliability: ModuleType, faults: ModuleType) -> None:
    fate = {"kind": "error", "seconds": 2.0, "text": "a | b\nc", "again": "recovered", "again_s": 1}
    found = {"atoll": reliability.summarise([fate], 1)}
    rows = [
        {"fault": fault.name, "text": fault.text, "harmless": fault.harmless, "limit_s": 60, "found": found}
        for fault in faults.FAULTS
    ]
    page = reliability.report({"ranks": 3, "victim": 1, "left_out": {"ompi4": "it is missing"}, "rows": rows})
    assert "| Atoll | 1 | 2.0 s (2.0 s to 2.0 s) | an exception | 0% | 100%, after 1.00 s | `a / b c` |" in page
    assert page.count("\n## ") == len(faults.FAULTS) + 1
    assert "Not measured: Open MPI 4.1: it is missing" in page


def test_ways_back(reliability: ModuleType) -> None:
    ways = importlib.import_module("reliability_ways")
    samples = [{"seconds": 2.0, "busy": False}, {"seconds": 9.0, "busy": True}, {"seconds": 4.0, "busy": False}]
    assert ways.seconds_text(ways.summarise(samples)) == "3.00 s (2.00 to 4.00 s)"
    assert ways.seconds_text(ways.summarise([samples[1]])) == "9.00 s (9.00 to 9.00 s), busy"
    silent = ways.summarise([samples[0], {"seconds": None, "busy": False}])
    assert ways.seconds_text(silent) == f"2.00 s (2.00 to 2.00 s), none in {ways.AGAIN_S:g} s: 1 of 2"
    page = reliability.report({"ranks": 3, "victim": 1, "left_out": {}, "rows": [],
                               "ways": {"rows": [{"text": "a way", **silent}], "left_out": {}}})  # fmt: skip
    assert "| a way | 2 | 2.00 s" in page


def test_wrong_steps_are_errors(reliability: ModuleType, tmp_path: Path) -> None:
    ways = importlib.import_module("reliability_ways")
    step = {"event": "step", "at": 2.0, "pid": 7, "step": 21, "ranks": 3, "text": ""}
    (tmp_path / "rank-0").write_text(json.dumps(step) + "\n")
    restarted = ways.Way("restart", "", [])
    assert ways.first_after(tmp_path, restarted, 0, 1.0, {6}) == step
    assert ways.first_after(tmp_path, restarted, 0, 1.0, {7}) is None
    assert ways.first_after(tmp_path, restarted, 0, 3.0, {6}) is None
    assert ways.first_after(tmp_path, ways.Way("shrink", "", [], left=2), 0, 1.0, {7}) is None
    (tmp_path / "rank-0").write_text(json.dumps({**step, "event": "wrong"}) + "\n")
    with pytest.raises(RuntimeError, match="rank 0 computed something wrong in step 21"):
        ways.steps_of(tmp_path, 0)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_reliability_scenario_writes_its_page(reliability: ModuleType, tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "reliability", timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "reliability.json").read_text())
    assert [row["fault"] for row in document["rows"]] == list(reliability.QUICK)
    for row in document["rows"]:
        assert row["found"]["atoll"]["kinds"] == {"error": 2 * 2 if row["fault"] == "kill" else 2 * 3}
        assert row["found"]["atoll"]["named"] == 1
    ways = {row["way"]: row for row in document["ways"]["rows"]}
    assert all(ways[name]["none"] == 0 for name in ("shrink", "restart", "torchrun_store"))
    assert "## From the fault to the next right step" in (tmp_path / "reliability.md").read_text()
    assert ("ompi4" in document["left_out"]) == (shutil.which("mpirun", path="/usr/bin") is None)
    assert "## A rank is killed (SIGKILL)" in (tmp_path / "reliability.md").read_text()
