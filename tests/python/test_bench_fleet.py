# SPDX-License-Identifier: Apache-2.0
"""Several robots: the binding, and the page of the scenario at a tiny size."""

import json
from pathlib import Path

import pytest

from atoll import _C
from test_bench import run_scenarios

PROFILE = Path(__file__).resolve().parents[1] / "data" / "intradp" / "profiles" / "nsdi25_VGG19_BN.json"


def test_plans_for_several_robots_are_asked_for_in_json() -> None:
    robots = {"profile": PROFILE.read_text(), "input_bytes": 150528, "count": 4,
              "link": {"up": 45e6 / 8, "latency": 0.002, "half_duplex": True}}  # fmt: skip
    answer = json.loads(_C.plan_fleet(json.dumps({"robots": [robots], "search_seconds": 5})))
    seconds = {each["policy"]: each["seconds"] for each in answer["policies"]}
    assert list(seconds) == ["local", "selfish", "aware", "distributed"]
    assert seconds["aware"] <= min(seconds["local"], seconds["selfish"])
    assert answer["bound"] < seconds["aware"]
    assert len(answer["robots"]) == 4
    with pytest.raises(ValueError, match="has no robots"):
        _C.plan_fleet('{"robots": []}')


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
