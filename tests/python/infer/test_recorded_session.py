# SPDX-License-Identifier: Apache-2.0
"""A recorded session: each inference, which side computed what, and the page."""

import gc
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import nn

import atoll
from atoll.report.inferences import Inferences
from atoll.report.page import report
from atoll.report.records import read
from serving import Serve
from split_cases import READY_S


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 4, 3, 1, 1)]
    return nn.Sequential(*layers).eval()


def recorded(folder: Path) -> Inferences:
    (record,) = read(folder)
    return Inferences.of(record)


def test_a_divided_inference_is_recorded(net: nn.Module, tmp_path: Path) -> None:
    image = torch.randn(1, 3, 64, 64)
    options = {"policy": "random", "seed": 1, "hedge": "never", "profile_seconds": 0.02, "record": tmp_path / "run"}
    with Serve(tmp_path) as server:
        with atoll.infer.Session(net, image, server.address, server.key_file, **options) as session:
            assert session.wait_until_ready(READY_S), session.report()
            seen = []
            for _ in range(5):
                session(image)
                seen.append(session.last)
        assert server.stop() == 0, server.output
    found = recorded(tmp_path / "run")
    assert [line["seconds"] for line in found.lines] == [each.seconds for each in seen if each is not None]
    assert [line["origin"] for line in found.lines] == [each.origin for each in seen if each is not None]
    rest = [line["seconds"] - line["computing"] - line["waiting"] for line in found.lines]
    assert min(rest) >= -1e-6
    assert median(rest) <= max(0.001, 0.05 * median(line["seconds"] for line in found.lines))
    assert found.record.end is not None
    assert found.state("local_seconds") > 0
    divided = [line for line in found.lines if line["origin"] != "local"]
    assert divided
    (division,) = found.divisions
    assert len(division["operators"]) == len(division["plan"]["shares"]) >= 6
    assert {lane for lane, *_ in division["plan"]["events"]} >= {"server"}
    text, said = report([found.record])
    assert "Operators of plan random" in text
    assert said[0].text.startswith("5 inferences: ")


def test_the_environment_names_the_folder_and_a_session_may_end_without_close(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_RUN_DIR", str(tmp_path))
    session = atoll.infer.Session(net, torch.zeros(1, 3, 8, 8), profile_seconds=0.0)
    for _ in range(3):
        session(torch.zeros(1, 3, 8, 8))
    del session
    gc.collect()
    found = recorded(tmp_path)
    assert (found.number, found.counts["origins"], found.divisions) == (3, {"local": 3}, [])
    assert found.record.end is not None
    assert "without a server" in report([found.record])[0]


def test_a_folder_that_cannot_be_had(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="the record of the run cannot be written"):
        atoll.infer.Session(net, torch.zeros(1, 3, 8, 8), profile_seconds=0.0, record=tmp_path / "file")
