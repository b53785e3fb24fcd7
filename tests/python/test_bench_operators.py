# SPDX-License-Identifier: Apache-2.0
"""bench/operators.py counts operators of small networks like those of published ones, and the latter match the
authors' numbers."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT / "tests/python/infer"))
    return importlib.import_module("operators")


@pytest.mark.verify
def test_small_networks_are_counted(operators: Any) -> None:
    settings = importlib.import_module("results").Settings(quick=True)
    rows = operators.measure(settings)["rows"]
    assert [row["model"] for row in rows] == ["DenseNet121", "ResNet101", "ConvNeXt-Base", "RegNetX-16GF"]
    for row in rows:
        assert row["ours"]["local"] > 10
        assert row["ours"]["partial"] == 1
        assert row["ours"]["partial"] + row["ours"]["global"] == row["log"]["global"]
    assert "| RegNetX-16GF | 0.0 M | 231 and 3 | 231 and 3 |" in operators.report({"rows": rows})


def test_published_networks_have_as_many_as_the_authors_say(operators: Any) -> None:
    """Except for four operators of torchvision's DenseNet that do nothing."""
    rows = json.loads((RESULTS / "operators.json").read_text())["rows"]
    for row in rows:
        ours = row["ours"]
        assert ours["partial"] + ours["global"] == row["paper"]["global"] == row["log"]["global"]
        assert row["log"]["local"] - ours["local"] == (4 if row["model"] == "DenseNet121" else 0)
        assert row["log"]["local"] - row["paper"]["local"] == (1 if row["model"] == "ResNet101" else 0)
