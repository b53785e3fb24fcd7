# SPDX-License-Identifier: Apache-2.0
"""`atoll plan infer`: its tables of plans and replays, the page, formats, and the errors of wrong calls."""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from atoll import _C
from atoll.cli import app
from atoll.infer.planning.watts import watts_of
from atoll.plan import inference_policies

DATA = Path(__file__).resolve().parents[2] / "data" / "intradp"
VGG = str(DATA / "profiles" / "nsdi25_VGG19_BN.json")
INDOORS = str(DATA / "bandwidth_indoors.csv")
QUICK = ["--policy", "local", "--policy", "offload", "--policy", "cut"]


def run(*arguments: str) -> Any:
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["plan", "infer", *arguments], env=environment, catch_exceptions=False)


def shown(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def document_of(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def small_model() -> dict[str, Any]:
    """A model that takes 2 s on the robot, with an input of 100 bytes."""
    conv = {"name": "conv", "rows": 10, "bytes": 500, "robot": {"per_row": 0.1}, "server": {"per_row": 0.01},
            "operands": [{"producer": 0, "map": {"kernel": 3, "padding": 1}}]}  # fmt: skip
    head = {"name": "head", "bytes": 10, "robot": {"fixed": 1.0}, "server": {"fixed": 0.1},
            "operands": [{"producer": 1}]}  # fmt: skip
    image = {"name": "image", "rows": 10, "bytes": 100}
    return {"atoll_operators": 1, "name": "small", "operators": [image, conv, head], "outputs": [2]}


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small_model()))
    return str(path)


def test_plans_side_by_side() -> None:
    lines = shown(VGG, "--rate", "93M", "--half-duplex", *QUICK)
    assert lines[0].startswith("VGG19_BN: ")
    assert "168.3 ms on the robot" in lines[0]
    assert lines[0].endswith("inputs of 602.1 kB")
    assert lines[1] == "link: 93 Mbit/s, 0 ns per message, half duplex"
    assert lines[2].startswith("watts: 13.35/4.04/0.21 for computing")
    assert "policy latency energy up down link robot server twice gap" in lines
    (offload,) = (line for line in lines if line.startswith("offload "))
    assert offload.startswith("offload 62.5")  # as in derived_bounds.csv
    assert "602.1 kB 4 kB" in offload
    assert lines[-1].startswith("Atoll: offload takes 62.5")
    assert "no plan takes less than 39.8" in lines[-1]


def test_the_input_may_be_encoded_smaller() -> None:
    document = document_of(VGG, "--rate", "93M", "--half-duplex", "--input-bytes", "150528", *QUICK)
    assert document["input_bytes"] == 150528
    seconds = {plan["policy"]: plan["seconds"] for plan in document["plans"]}
    assert 1e3 * seconds["offload"] == pytest.approx(23.7, abs=0.06)
    assert 1e3 * document["bound"]["seconds"] == pytest.approx(12.3, abs=0.06)
    assert document["notes"] == []


def test_all_policies_are_there() -> None:
    document = document_of(VGG, "--rate", "40M", "--policy", "local", *(["--policy", "random"]))
    assert [plan["policy"] for plan in document["plans"]] == ["local", "random"]
    assert set(inference_policies()) >= {"local", "offload", "stream", "cut", "energy", "tensor", "intra-dp", "auto"}


def test_own_models(small: str) -> None:
    document = document_of(small, "--rate", "8k", "--latency", "0.25", "--down", "80k", *QUICK)
    (offload,) = (plan for plan in document["plans"] if plan["policy"] == "offload")
    assert offload["seconds"] == pytest.approx(100 / 1000 + 0.25 + 0.2 + 10 / 10_000 + 0.25)
    assert (offload["up_bytes"], offload["down_bytes"]) == (100, 10)
    assert offload["joules"] == pytest.approx(4.04 * offload["seconds"] + 0.21 * (0.1 + 0.001))
    assert offload["gap"] == pytest.approx(1 - document["bound"]["seconds"] / offload["seconds"])
    assert offload["events"][0][:2] == ["up", 0]
    assert document_of(small, "--rate", "8k", "--input-bytes", "50", *QUICK)["input_bytes"] == 50


def test_replays(small: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rates = ["0,1000,1000", "1,0,0", "2,1000,1000", "3,10,10"]
    path.write_text("\n".join(["seconds,up_bytes_per_second,down_bytes_per_second", *rates]) + "\n")
    document = document_of(small, "--trace", str(path), "--period", "1")
    replays = {(row["policy"], row.get("forecast")): row for row in document["replay"]}
    assert replays["local", None]["seconds"]["mean"] == pytest.approx(2)
    guarded = replays["offload", None]
    assert guarded["seconds"]["most"] <= guarded["deadline"] + 1e-9
    assert guarded["deadline"] == pytest.approx(4)
    oracle = replays["auto", "oracle"]
    assert oracle["seconds"]["mean"] <= 2 + 1e-9
    lines = shown(small, "--trace", str(path), "--period", "1", "--deadline", "3")
    assert any(line.startswith("offload, by 3 s ") for line in lines)
    assert "plans are for the trace's median, 80 bit/s" in lines


def test_the_page_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    shown(VGG, "--rate", "93M", "--trace", INDOORS, *QUICK, "--html", str(path))
    page = path.read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    pictures = page.split("<svg viewBox=")[1:]
    assert len(pictures) == 3
    for picture in pictures:
        drawing = ElementTree.fromstring("<svg viewBox=" + picture.partition("</svg>")[0] + "</svg>")
        boxes = list(drawing.iter("rect"))
        assert boxes
        assert all(0 <= float(box.attrib["x"]) <= 1000 and float(box.attrib["width"]) > 0 for box in boxes)
        assert [line.findtext("title") for line in drawing.iter("path")] == ["bound"]
    assert "conv2d" in page or "Conv" in page or "conv" in page


def test_json_into_a_file(small: str, tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    shown(small, "--rate", "8k", *QUICK, "--json", str(path))
    assert json.loads(path.read_text()) == document_of(small, "--rate", "8k", *QUICK)


def test_watts_by_model() -> None:
    with (DATA / "power_from_logs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["source"], row["model"], row["system"]) == (
            "nsdi25", "VGG19_BN", "Local")]  # fmt: skip
    mean = sum(float(row["board_W_mean"]) for row in rows) / len(rows)
    document = document_of(VGG, "--rate", "93M", "--watts", str(DATA / "power_from_logs.csv"), "--policy", "local")
    assert document["watts"]["compute_watts"] == pytest.approx(mean)
    assert document["watts_source"].startswith("records of nsdi25 VGG19_BN")
    assert document["plans"][0]["joules"] == pytest.approx(mean * document["robot_seconds"])
    assert watts_of("", "", "")[0] == {"compute_watts": 13.35, "idle_watts": 4.04, "radio_watts": 0.21}
    assert watts_of("20/5", "", "") == (
        {"compute_watts": 20, "idle_watts": 5, "radio_watts": 0.21}, "the command line"
    )  # fmt: skip
    assert "three states" in watts_of(str(DATA / "power_from_logs.csv"), "nobody", "nothing")[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"atoll_operators": 7}, "has version 7, but this is 1: measure the model again"),
        ({"operators": 3}, "does not hold a list of operators"),
        ({"colour": 1}, 'unknown key "colour"'),
        ({"outputs": []}, "a graph has no outputs"),
    ],
)
def test_what_is_wrong_with_a_model_is_named(small: str, change: dict[str, Any], message: str) -> None:
    Path(small).write_text(json.dumps(small_model() | change))
    assert message in refusal(small, "--rate", "8k", "--policy", "local")


def test_wrong_calls_are_told_the_way_out(small: str, tmp_path: Path) -> None:
    assert "give --rate 93M, or --trace FILE" in refusal(small)
    assert "invalid rate 'fast'" in refusal(small, "--rate", "fast")
    assert 'the policy "best" is not known' in refusal(small, "--rate", "8k", "--policy", "best")
    assert "no.json cannot be read: No such file" in refusal(str(tmp_path / "no.json"), "--rate", "8k")
    assert "is a folder: --operators counts" in refusal(str(tmp_path), "--rate", "8k")
    assert "cannot be read" in refusal(small, "--rate", "8k", "--trace", str(tmp_path / "no.csv"))
    assert "give COMPUTE/IDLE" in refusal(small, "--rate", "8k", "--watts", "much")
    text = tmp_path / "text"
    text.write_text("[1]")
    assert "does not hold a model: give a published profile" in refusal(str(text), "--rate", "8k")
    text.write_text("{")
    assert "is not JSON" in refusal(str(text), "--rate", "8k")
    assert "--operators takes a folder that atoll export wrote" in refusal(str(tmp_path), "--operators")


def test_operators_of_a_bundle(tmp_path: Path) -> None:
    from atoll.infer import capture

    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 5)).eval()
    folder = capture(net, (torch.zeros(1, 3, 8, 8),)).save(tmp_path)
    document = document_of(str(folder), "--operators")
    best = document["inputs"][0]
    assert best["rows"] == 8
    assert best["local"] >= 2
    assert best["global"] + best["partial"] >= 1
    lines = shown(str(folder), "--operators")
    assert "input dim rows local partial global constant" in lines


def test_a_profile_of_a_device_is_checked() -> None:
    profile = {"atoll_profile": 1, "device": "cpu", "runner": "torch", "model": "a" * 64, "total": 1.0,
               "input": 0, "dim": 2, "nodes": [[0.0, 0.5, 1.0]]}  # fmt: skip
    assert json.loads(_C.check_infer_profile(json.dumps(profile))) == profile
    with pytest.raises(ValueError, match="total is -1"):
        _C.check_infer_profile(json.dumps(profile | {"total": -1}))
