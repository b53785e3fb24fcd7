# SPDX-License-Identifier: Apache-2.0
"""How bench/ judges what it measured."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


@pytest.mark.parametrize(
    ("buckets", "backward", "bandwidth", "exposed"),
    [
        ([10], 4.0, 5.0, 2.0),  # one bucket is ready at the very end
        ([10, 10], 20.0, 1.0, 10.0),  # the first is through when the second is ready
        ([5, 10], 3.0, 1.0, 13.0),  # the second waits for the first
    ],
)
def test_least_exposed(load: Any, buckets: list[int], backward: float, bandwidth: float, exposed: float) -> None:
    assert load("ddp").least_exposed(buckets, backward, bandwidth) == pytest.approx(exposed)


def bridge_document(**changes: Any) -> dict[str, Any]:
    def row(layout: str, us: float) -> dict[str, Any]:
        times = {"median": us, "p10": us, "p90": us}
        return {"rate": 10**9, "layout": layout, "bound_us": 95.0, "us": {"atoll": times}, "ratio": {"gloo": times}}

    return {"quick": False, "busy": False, "rows": [row("AABB", 96.0), row("AAAB", 101.0)], **changes}


def test_the_worst_case_counts(load: Any, tmp_path: Path) -> None:
    aims = load("aims")
    (tmp_path / "bridge.json").write_text(json.dumps(bridge_document()))
    line = next(line for line in aims.summary(tmp_path).splitlines() if "of M/B" in line)
    assert "94% (94% to 94%), AAAB at 1 Gbit/s" in line
    assert "**missed**" in line


@pytest.mark.parametrize("mark", ["quick", "busy"])
def test_doubtful_measurements_are_not_judged(load: Any, tmp_path: Path, mark: str) -> None:
    (tmp_path / "bridge.json").write_text(json.dumps(bridge_document(**{mark: True})))
    assert "missed" not in load("aims").summary(tmp_path)
    assert " met " not in load("aims").summary(tmp_path)
