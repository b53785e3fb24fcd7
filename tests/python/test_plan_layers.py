# SPDX-License-Identifier: Apache-2.0
"""The Python interface of plans of layers, and `atoll plan layers`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atoll.cli import app
from atoll.plan import plan_layers, price_layers
from atoll.plan.layers import Proof

ROOT = Path(__file__).resolve().parents[2]


def request(**more: Any) -> dict[str, Any]:
    """Returns a request for six blocks and a head that weighs two blocks; the second device is half as fast."""
    block = {"h200": [[1, 0.1, 0.2]], "mi325x": [[1, 0.2, 0.4]]}
    head = {kind: [[1, 2 * times[0][1], 2 * times[0][2]]] for kind, times in block.items()}
    items = [
        {"name": "layers", "count": 6, "times": block, "weight_bytes": 100, "kept_bytes": 10, "output_bytes": 8},
        {"name": "output", "kind": "head", "times": head, "weight_bytes": 100, "kept_bytes": 10},
    ]
    devices = [{"name": "fast", "kind": "h200", "memory_bytes": 1000}, {"name": "slow", "kind": "mi325x"}]
    return {"items": items, "devices": devices, "batch": 16, **more}


def plan(tmp_path: Path, asked: dict[str, Any], *arguments: str) -> Any:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(asked))
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["plan", "layers", str(path), *arguments], env=environment, catch_exceptions=False)


def lines_of(result: Any) -> list[str]:
    return [" ".join(line.split()) for line in result.output.replace("│", " ").splitlines()]


def test_stages_balance_measured_seconds() -> None:
    answer = plan_layers(request())
    assert answer.feasible
    stages = answer.pipelines[0].stages
    # The work of 8 blocks: 6 on the fast device, 2 on the slow one, which are the first two blocks or the head.
    assert {stage.device: stage.items[1] - stage.items[0] for stage in stages} in (
        {"fast": 5, "slow": 2}, {"fast": 6, "slow": 1})  # fmt: skip
    assert answer.seconds == pytest.approx(15 * 1.8 + 3.0)
    # At 1 and 1/2 block in 0.3 s a micro-batch takes 1.6 s in the long run, and the first one 2.4 s.
    assert answer.bound == pytest.approx(15 * 1.6 + 2.4)
    assert answer.exact == Proof(stages=True, search=True, examined=1, pruned=0)


def test_plans_are_priced_again() -> None:
    answer = plan_layers(request())
    priced = price_layers(request(), answer)
    assert priced.seconds == answer.seconds
    assert priced.pipelines == answer.pipelines


@pytest.mark.parametrize(
    ("change", "words"),
    [({"bach": 3}, 'unknown key "bach"'), ({"batch": 0}, "the batch is 0"), ({"items": []}, "no items"),
     ({"schedule": "fast"}, "give one of 1f1b"), ({"replicas": 9}, "no number of replicas")],
)  # fmt: skip
def test_wrong_requests_are_value_errors(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_layers(request(**change))


def test_the_command_shows_stages_and_the_bound(tmp_path: Path) -> None:
    result = plan(tmp_path, request())
    assert result.exit_code == 0, result.output
    lines = lines_of(result)
    assert lines[0] == "Pipeline 0: 16 micro-batches"
    assert lines[1] == "stage items device rank forward backward send busy waits memory of"
    assert any("fast" in line and "1.8 s 0.0 %" in line for line in lines)
    assert any(line.startswith("Atoll: 16 samples take 30 s in 1 pipeline, micro-batches of 1") for line in lines)
    assert any(line.startswith("Devices of kind h200 alone (1 of them) take 38.4 s") for line in lines)


def test_the_command_prints_json_and_takes_it_as_a_plan(tmp_path: Path) -> None:
    result = plan(tmp_path, request(), "--json", "-", "--batch", "8", "--schedule", "gpipe")
    answer = json.loads(result.stdout)
    assert (answer["micro_batches"], answer["schedule"]) == (8, "gpipe")
    (tmp_path / "plan.json").write_text(result.stdout)
    again = plan(tmp_path, request(), "--plan", str(tmp_path / "plan.json"), "--schedule", "gpipe", "--json", "-")
    assert json.loads(again.stdout)["seconds"] == answer["seconds"]


def test_the_command_writes_what_other_runtimes_take(tmp_path: Path) -> None:
    found = json.loads(plan(tmp_path, request(), "--for", "torchtitan").stdout)
    parts = found["module_fqns_per_model_part"]
    assert [name for part in parts for name in part] == [*(f"layers.{i}" for i in range(6)), "output"]
    megatron = json.loads(plan(tmp_path, request(), "--for", "megatron").stdout)
    assert re.fullmatch(r"Et(\*\d)?\|(t(\*\d)?)?L", megatron["pipeline_model_parallel_layout"])
    refused = plan(tmp_path, request(schedule="interleaved"), "--for", "megatron")
    assert refused.exit_code == 2
    assert "chunk" in " ".join(lines_of(refused))
    assert "choose from" in " ".join(lines_of(plan(tmp_path, request(), "--for", "horovod")))


def test_interleaved_plans_name_the_items_of_chunks(tmp_path: Path) -> None:
    asked = request(schedule="interleaved")
    answer = json.loads(plan(tmp_path, asked, "--json", "-").stdout)
    (pipeline,) = answer["pipelines"]
    stages = pipeline["chunked"]["stages"]
    assert [stage["device"] for stage in stages] == [stage["device"] for stage in pipeline["stages"]] * 2
    assert [name for stage in stages for name in stage["names"]] == [*(f"layers.{i}" for i in range(6)), "output"]
    assert any(line.startswith("With the named 2 chunks on each rank") for line in lines_of(plan(tmp_path, asked)))
    again = plan(tmp_path, asked, "--plan", str(written(tmp_path, answer)), "--json", "-")
    assert json.loads(again.stdout)["pipelines"] == answer["pipelines"]
    many = lines_of(plan(tmp_path, {**asked, "chunks": 4}))
    assert any(line.startswith("No items are named for 4 chunks") for line in many)


def written(tmp_path: Path, document: dict[str, Any]) -> Path:
    path = tmp_path / "written.json"
    path.write_text(json.dumps(document))
    return path


def test_what_does_not_fit_ends_with_the_nearest_plan(tmp_path: Path) -> None:
    asked = request()
    for devices in asked["devices"]:
        devices["memory_bytes"] = 300
    result = plan(tmp_path, asked, "--html", str(tmp_path / "plan.html"))
    assert result.exit_code == 1
    text = " ".join(lines_of(result))
    assert "Atoll: no plan fits the devices' memories: " in text
    assert "more on each device" in text
    assert "does not fit" in text
    assert "no plan fits" in (tmp_path / "plan.html").read_text()


def test_a_given_plan_that_does_not_fit_ends_with_the_nearest_that_does(tmp_path: Path) -> None:
    asked = request()
    asked["devices"][0]["memory_bytes"] = 500
    stages = [{"items": [0, 5], "device": "fast"}, {"items": [5, 7], "device": "slow"}]
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"micro_batch": 1, "pipelines": [{"micro_batches": 16, "stages": stages}]}))
    result = plan(tmp_path, asked, "--plan", str(given))
    assert result.exit_code == 1
    text = " ".join(lines_of(result))
    assert "does not fit" in text
    assert re.search("With other stages: (4 items on fast, 3 items on slow|3 items on slow, 4 items on fast): ", text)
    assert "Atoll: the plan does not fit the devices' memories: layers.0 to layers.4 on fast needs " in text
    answer = json.loads(plan(tmp_path, asked, "--plan", str(given), "--json", "-").stdout)
    assert answer["tightest"]["missing_bytes"] == answer["tightest"]["memory_bytes"] - 500 > 0
    (nearest,) = answer["nearest"]
    nearest_plan = tmp_path / "nearest.json"
    nearest_plan.write_text(json.dumps(nearest))
    assert plan(tmp_path, asked, "--plan", str(nearest_plan)).exit_code == 0


def test_the_page_has_a_lane_for_each_stage(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    asked = request(replicas=2)
    asked["devices"][0]["count"] = asked["devices"][1]["count"] = 2
    assert plan(tmp_path, asked, "--html", str(page)).exit_code == 0
    text = page.read_text()
    # Two fast devices do 11 micro-batches in the time in which two slow ones do 5: 10 * 1.2 + 2.4 s.
    shares = ("Pipeline 0: 11 micro-batches", "Pipeline 1: 5 micro-batches")
    for words in ("0 fast", "1 slow", *shares, "take 14.4 s", 'class="bar"'):
        assert words in text


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for arguments, words in (
        (["plan", "layers", str(tmp_path / "none.json")], "cannot be read"),
        (["plan", "layers", __file__], "is not JSON"),
    ):
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "250", "NO_COLOR": "1"})
        assert result.exit_code == 2
        assert words in result.output


def test_the_example_of_the_documentation_is_a_request() -> None:
    text = (ROOT / "docs/plan-layers.md").read_text()
    example = json.loads(re.findall(r"```json\n(.*?)```", text, re.DOTALL)[0])
    answer = plan_layers({**example, "replicas": 8})
    assert answer.feasible
    assert answer.replicas == 8
    assert answer.exact is not None
    assert answer.exact.stages
