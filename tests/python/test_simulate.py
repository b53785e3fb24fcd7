# SPDX-License-Identifier: Apache-2.0
"""`atoll simulate`: its output and files, orders of actions compared with PyTorch's own, and plans of layers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import schedules
from typer.testing import CliRunner

from atoll.cli import app
from atoll.plan import schedule_actions, simulate
from atoll.plan.documents import plan_layers
from atoll.plan.from_layers import plan_of

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "examples" / "llama_8b_pp2_dp8.json"
SMALL: dict[str, Any] = {
    "ranks": [{"island": "a", "count": 2, "memory_bytes": 5}],
    "stages": [{"forward": 1, "backward": 2, "activation_bytes": 3}, {"forward": 1, "backward": 2}],
    "pipelines": [{"ranks": [0, 1], "micro_batches": 4}],
}


def run(*arguments: str) -> Any:
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["simulate", *arguments], env=environment, catch_exceptions=False)


def written(folder: Path, plan: dict[str, Any]) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return str(path)


def shown(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_what_is_shown(tmp_path: Path) -> None:
    lines = shown(written(tmp_path, SMALL))
    assert "ranks name island stages computes optimises transfers reduces idle memory" in lines
    assert "0 a 0 a 0 12 s - - - 3 s 6e-09 GB" in lines
    assert "backward stage 1 (a) 8 s 53.3 %" in lines
    assert "rank 0 (a 0) needs 6e-09 GB but has 5e-09" in lines
    assert lines[-1] == "Atoll: a step takes 15 s; the same actions take at least 15 s (1.000); bubble 20.0 %"


def test_options_replace_what_the_plan_says(tmp_path: Path) -> None:
    plan = written(tmp_path, SMALL)
    answer = json.loads(run(plan, "--schedule", "zb1p", "--json", "-").stdout)
    assert answer["seconds"] == 13
    assert json.loads(run(plan, "--steps", "3", "--json", "-").stdout)["seconds"] == 45


def test_what_is_written(tmp_path: Path) -> None:
    plan, trace, answer, page = written(tmp_path, SMALL), tmp_path / "t.json", tmp_path / "a.json", tmp_path / "p.html"
    shown(plan, "--trace", str(trace), "--json", str(answer), "--html", str(page))
    slices = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 16
    assert json.loads(answer.read_text())["schema"] == 1
    assert "plotly" in page.read_text()
    assert "forward" in page.read_text()


def test_the_papers_transports() -> None:
    answers = json.loads(run(str(PAPER), "--links", "all", "--json", "-").stdout)
    steps = {name: answer["step_seconds"] for name, answer in answers.items()}
    assert sorted(steps, key=lambda name: steps[name]) == ["device-direct", "dcbs+mpdt", "dcbs", "global-gloo"]
    for answer in answers.values():
        assert answer["bound"] <= answer["step_seconds"]
        assert all(rank["fits"] for rank in answer["ranks"])
    # The direct transport costs next to nothing: the bound of the stages themselves is close.
    assert answers["device-direct"]["step_seconds"] < 1.03 * answers["device-direct"]["bound"]
    assert [line.split()[0] for line in shown(str(PAPER), "--links", "dcbs", "--links", "device-direct")[1:]] == [
        "dcbs", "device-direct",
    ]  # fmt: skip


def test_wrong_calls(tmp_path: Path) -> None:
    plan = written(tmp_path, SMALL)
    assert "cannot be read" in refusal(str(tmp_path / "none.json"))
    assert "needs one stage for each rank" in refusal(written(tmp_path, SMALL | {"pipelines": [{"ranks": [0]}]}))
    plan = written(tmp_path, SMALL)
    assert "is not known: give one of GPipe" in refusal(plan, "--schedule", "2f2b")
    assert "have no names" in refusal(plan, "--links", "all")
    assert 'no "links"' in refusal(plan, "--links", "x")
    assert "show a single simulation" in refusal(str(PAPER), "--links", "all", "--trace", str(tmp_path / "t.json"))
    assert "is already a plan" in refusal(plan, "--layers", plan)
    (tmp_path / "list.json").write_text("[]")
    assert "must hold a JSON object" in refusal(str(tmp_path / "list.json"))


# PyTorch's schedules, without a process group.


class RecordingStage:
    """Stands for a PipelineStage in schedules with one stage per rank; records their calls in order."""

    has_backward = True
    is_first = False
    is_last = False

    def __init__(self, index: int, stages: int) -> None:
        self.stage_index = self.group_rank = index
        self.num_stages = self.group_size = stages
        self.submod = torch.nn.Identity()
        self.actions: list[str] = []

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.actions.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch: int, **_: Any) -> None:
        self.actions.append(f"{self.stage_index}B{micro_batch}")

    def get_fwd_recv_ops(self, _: int) -> list[Any]:
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def perform_reduce_grad(self, _: int) -> None:
        pass


def single(kind: type, ranks: int, micro_batches: int) -> list[list[str]]:
    rows = []
    for rank in range(ranks):
        stage = RecordingStage(rank, ranks)
        schedule = kind(stage, micro_batches)
        schedule._initialize_stage = lambda *_, **__: None
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        rows.append(stage.actions)
    return rows


def several(kind: type, ranks: int, rounds: int, micro_batches: int) -> list[list[str]]:
    stages = [
        SimpleNamespace(num_stages=ranks * rounds, group_size=ranks, group_rank=0, stage_index=place * ranks,
                        submod=torch.nn.Identity(), is_last=False, has_backward=True)
        for place in range(rounds)
    ]  # fmt: skip
    order = kind(stages, micro_batches).pipeline_order
    return [[str(action) for action in order[rank] if action is not None] for rank in range(ranks)]


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_single_stage_orders_are_pytorchs(name: str) -> None:
    kind = schedules.get_schedule_class(name)
    for ranks in range(1, 9):
        for micro_batches in (ranks, ranks + 1, 2 * ranks + 3, 32):
            assert schedule_actions(name, ranks, ranks, micro_batches) == single(kind, ranks, micro_batches)


@pytest.mark.parametrize("name", ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"])
def test_multi_stage_orders_are_pytorchs(name: str) -> None:
    kind = schedules.get_schedule_class(name)
    compared = refused = 0
    for ranks in range(1, 7):
        for rounds in (2,) if name == "ZBVZeroBubble" else (1, 2, 3):
            for micro_batches in (1, 2, 3, 5, 6, 8, 9, 16):
                try:
                    theirs = several(kind, ranks, rounds, micro_batches)
                except ValueError:
                    refused += 1
                    with pytest.raises(ValueError, match="rounds of equal size"):
                        schedule_actions(name, ranks, ranks * rounds, micro_batches)
                    continue
                assert schedule_actions(name, ranks, ranks * rounds, micro_batches) == theirs
                compared += 1
    assert compared > 40
    assert (refused > 0) == (name in ("Interleaved1F1B", "InterleavedZeroBubble"))


# Plans of layers.

LAYERS: dict[str, Any] = {
    "items": [
        {"name": "embed", "kind": "embedding", "weight_bytes": 10, "gradient_bytes": 10, "output_bytes": 4},
        {"name": "block", "count": 3, "weight_bytes": 5, "gradient_bytes": 7, "kept_bytes": 2, "output_bytes": 4},
        {"name": "head", "kind": "head", "weight_bytes": 10, "gradient_bytes": 10},
    ],
    "devices": [{"name": "fast", "count": 2, "memory_bytes": 100}, {"name": "slow", "count": 2}],
    "links": [{"between": ["fast", "slow"], "latency": 0.5, "seconds_per_byte": 0.125}],
    "ties": [{"items": ["embed", "head"], "gradient_bytes": 6}],
}


def stage(items: list[int], device: str, rank: int, seconds: float) -> dict[str, Any]:
    return {"items": items, "device": device, "rank": rank, "forward": seconds, "backward": 2 * seconds}


ANSWER: dict[str, Any] = {
    "feasible": True, "micro_batch": 2, "schedule": "1f1b",
    "pipelines": [
        {"micro_batches": 4, "stages": [stage([0, 3], "fast", 0, 1), stage([3, 5], "slow", 2, 1)]},
        {"micro_batches": 3, "stages": [stage([0, 2], "fast", 1, 1), stage([2, 5], "slow", 3, 1)]},
    ],
}  # fmt: skip


def test_plans_of_layers() -> None:
    plan = plan_of(LAYERS, ANSWER)
    assert [rank["island"] for rank in plan["ranks"]] == ["fast", "fast", "slow", "slow"]
    first = plan["pipelines"][0]["stages"][0]
    assert (first["boundary_bytes"], first["weight_bytes"], first["activation_bytes"]) == (8, 44, 8)
    assert [(each["bytes"], each["members"]) for each in plan["reductions"]] == [
        (17, [[0, 0], [1, 0]]), (7, [[0, 0], [1, 1]]), (17, [[0, 1], [1, 1]]),
        (6, [[0, 0], [0, 1]]), (6, [[1, 0], [1, 1]]),
    ]  # fmt: skip
    answer = simulate(plan)
    # A forward pass, then its result: 8 bytes and the latency take 1.5 s, in which both ends wait.
    assert answer.ranks[0].transfers >= 1.5
    assert answer.seconds > 3 * 4 + 3


def test_interleaved_plans_of_layers(tmp_path: Path) -> None:
    """The planner's answer has two stages on each rank, and is simulated like that."""
    times = {"fast": [[1, 1, 2]], "slow": [[1, 2, 4]]}
    asked = {**LAYERS, "items": [{**item, "times": times} for item in LAYERS["items"]], "batch": 8}
    asked["items"][1] = {**asked["items"][1], "count": 10}
    asked["schedule"] = "interleaved"
    answer = plan_layers(asked)
    plan = plan_of(asked, answer)
    (pipeline,) = plan["pipelines"]
    assert (len(pipeline["ranks"]), len(pipeline["stages"])) == (4, 8)
    assert [stage["boundary_bytes"] for stage in pipeline["stages"]] == [4] * 7 + [0]
    request, layers = written(tmp_path, asked), tmp_path / "answer.json"
    layers.write_text(json.dumps(answer))
    simulated = json.loads(run(request, "--layers", str(layers), "--json", "-").stdout)
    assert [stage["rank"] for stage in simulated["stages"]] == pipeline["ranks"] * 2
    # They are computed independently, and the planner's is an estimate.
    assert 0.7 * answer["seconds"] < simulated["seconds"] < 1.3 * answer["seconds"]
    del answer["pipelines"][0]["chunked"]
    layers.write_text(json.dumps(answer))
    assert 'the layers\' plan has "chunks": 2' in refusal(request, "--layers", str(layers))


def test_plans_of_layers_from_the_command_line(tmp_path: Path) -> None:
    request, layers = tmp_path / "request.json", tmp_path / "answer.json"
    request.write_text(json.dumps(LAYERS))
    layers.write_text(json.dumps(ANSWER))
    assert shown(str(request), "--layers", str(layers))[-1].startswith("Atoll: a step takes ")
    assert "give the answer with --layers" in refusal(str(request))
    layers.write_text(json.dumps({"feasible": False, "reason": "rank 1 lacks 5 bytes"}))
    assert "is not feasible: rank 1 lacks 5 bytes" in refusal(str(request), "--layers", str(layers))
    layers.write_text(json.dumps({"micro_batch": 1, "pipelines": [{"stages": [{"items": [0, 5]}]}]}))
    assert "has no pipelines with times" in refusal(str(request), "--layers", str(layers))
