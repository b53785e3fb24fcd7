# SPDX-License-Identifier: Apache-2.0
"""bench/operators.py counts operators of small networks as it does of published ones."""

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(ROOT / "tests/python/infer"))
    return importlib.import_module("operators")


def test_small_networks_are_counted(operators: Any) -> None:
    settings = importlib.import_module("results").Settings(quick=True)
    rows = operators.measure(settings)["rows"]
    assert [row["model"] for row in rows] == ["DenseNet121", "ResNet101", "ConvNeXt-Base", "RegNetX-16GF"]
    for row in rows:
        assert row["ours"]["local"] > 10
        assert row["ours"]["partial"] == 1
        assert row["ours"]["partial"] + row["ours"]["global"] == row["log"]["global"]
    assert "| RegNetX-16GF | 0.0 M | 231 and 3 | 231 and 3 |" in operators.report({"rows": rows})
