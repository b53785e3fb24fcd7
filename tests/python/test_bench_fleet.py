# SPDX-License-Identifier: Apache-2.0
"""Several robots: the program that plans for them, and the page of the scenario at a tiny size."""

import importlib
import json
from pathlib import Path

import pytest

from test_bench import run_scenarios

ROOT = Path(__file__).resolve().parents[2]


def test_plans_for_several_robots_are_asked_for_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    split_fleet = importlib.import_module("split_fleet")
    program = ROOT / "build" / "release" / "bench" / "plan_fleet"
    assert program.exists(), f"{program} is missing: make setup builds it"
    answer = split_fleet.planned(program, [split_fleet.robots_of("VGG19", 4, 45)], 5)
    seconds = {each["policy"]: each["seconds"] for each in answer["policies"]}
    assert list(seconds) == ["local", "selfish", "aware", "distributed"]
    assert seconds["aware"] <= min(seconds["local"], seconds["selfish"])
    assert answer["bound"] < seconds["aware"]
    assert len(answer["robots"]) == 4
    with pytest.raises(RuntimeError, match="has no robots"):
        split_fleet.planned(program, [])


@pytest.mark.verify
def test_split_fleet_writes_its_page(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "split_fleet")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "split_fleet.json").read_text())
    assert [(row["models"], row["mbps"]) for row in document["rows"]] == [(["2 VGG19"], 45), (["4 VGG19"], 45)]
    for row in document["rows"]:
        policies = row["policies"]
        assert row["bound"] <= policies["aware"]["seconds"] <= policies["selfish"]["seconds"]
        assert len(policies["distributed"]["robots"]) == row["robots"]
    page = (tmp_path / "split_fleet.md").read_text()
    assert "| 4 VGG19 | 45 |" in page
