# SPDX-License-Identifier: Apache-2.0
"""`atoll.plan` gives everything that the planners answer, in dataclasses, and its page shows what works."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from atoll import _C
from atoll.plan import (
    BatchComparison,
    Cost,
    InferencePlans,
    InferenceRequest,
    LayerPlan,
    LinkRates,
    LinkTrace,
    Rank,
    Replay,
    Simulation,
    documents,
    plan_inference,
    plan_layers,
    price_layers,
    read_model,
    simulate,
    step_of_layers,
    write_trace,
)
from atoll.plan.documents import document_of, record_of
from test_plan_layers import request

ROOT = Path(__file__).resolve().parents[2]


def without_nothing(value: Any) -> Any:
    """Returns a document without the keys whose value is null or empty, and without the number of its format."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if each not in (None, [], {}) and key != "schema"}
        return {key: without_nothing(each) for key, each in kept.items()}
    return [without_nothing(each) for each in value] if isinstance(value, list) else value


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file that docs/plan-infer.md shows. The robot takes 0.0212 s."""
    blocks = re.findall(r"^```json\n(.*?)^```", (ROOT / "docs/plan-infer.md").read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "model.json"
    path.write_text(next(block for block in blocks if "atoll_operators" in block))
    return path


def infeasible() -> dict[str, Any]:
    devices = [{"name": "h200", "memory_bytes": 500}, {"name": "mi325x", "memory_bytes": 100}]
    return documents.plan_layers(request(devices=devices))


def answers(model: Path) -> dict[str, tuple[type, dict[str, Any]]]:
    layers = documents.plan_layers(request())
    chunked = documents.plan_layers(request(schedule="interleaved"))
    step = dict(step_of_layers(request(), layers))
    ranks = [{"cost": document_of(Cost.affine(0, each)), "busy_watts": 9, "idle_watts": 1} for each in (1, 3)]
    link = {"up": 1e7}
    asked = {
        "model": read_model(model), "link": link, "whole": True, "rates": [1e6], "cuts": True, "evaluations": 200,
        "trace": {"bin_seconds": 1.0, "up": [1e7, 1e5]}, "search_seconds": 0.1,
        "replay": [{"policy": "auto", "guard": True, "forecast": "last", "each": True}, {"policy": "local"}],
    }  # fmt: skip
    return {
        "batches": (BatchComparison, _C.explain_batches({"ranks": ranks, "batch": 64})),
        "layers": (LayerPlan, layers),
        "chunks": (LayerPlan, chunked),
        "no layers": (LayerPlan, infeasible()),
        "step": (Simulation, documents.simulate({**step, "timeline": True})),
        "inference": (InferencePlans, documents.plan_operators(asked)),
    }


def test_nothing_of_an_answer_is_lost(model: Path) -> None:
    for name, (kind, answer) in answers(model).items():
        assert without_nothing(document_of(record_of(kind, answer))) == without_nothing(answer), name


def test_a_plan_that_does_not_fit_says_what_would() -> None:
    plan = record_of(LayerPlan, infeasible())
    assert not plan.feasible
    assert plan.reason
    assert plan.pipelines == []
    assert plan.tightest is not None
    assert plan.tightest.missing_bytes is not None
    assert any(change.change == "memory" for change in plan.nearest)
    with pytest.raises(ValueError, match="not feasible"):
        step_of_layers(request(), plan)


def test_a_step_of_layers_takes_what_the_planner_predicts(tmp_path: Path) -> None:
    plan = plan_layers(request())
    step = simulate(step_of_layers(request(), plan))
    assert plan.seconds is not None
    assert 0.7 * plan.seconds < step.step_seconds < 1.3 * plan.seconds
    assert step.timeline is None
    assert price_layers(request(), plan).seconds == plan.seconds
    write_trace(step_of_layers(request(), plan), tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_an_inference_is_divided_and_replayed(model: Path) -> None:
    link, trace = LinkRates(1e7), LinkTrace(1.0, up=[1e7, 1e5])
    found = plan_inference(
        InferenceRequest(read_model(model), link, policies=["local", "offload"], trace=trace, replay=[Replay("local")])
    )
    assert [plan.policy for plan in found.plans] == ["local", "offload"]
    assert (found.robot_seconds, found.plans[0].seconds) == pytest.approx((0.0212, 0.0212))
    assert found.bound.seconds <= found.plans[1].seconds
    assert found.replay is not None
    assert found.replay[0].seconds.mean == pytest.approx(0.0212)
    assert (found.replay[0].guarded, found.replay[0].missed) == (0, None)
    with pytest.raises(ValueError, match="give at least 1"):
        plan_inference(InferenceRequest(read_model(model), link, chunks=0))
    with pytest.raises(ValueError, match="cannot be read"):
        read_model(model.with_name("none.json"))


def test_records_become_mappings_without_what_is_none() -> None:
    rank = Rank(Cost.affine(1, 2), name="a", latencies=(0.5, 1))
    document = document_of(rank)
    assert document == {"cost": {"shape": "affine", "fixed": 1, "per_sample": 2}, "name": "a", "latencies": [0.5, 1]}
    assert record_of(Rank, document).cost == rank.cost


def test_the_page_shows_what_works(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(model.parent)
    text = (ROOT / "docs/plan-python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "plan-python.md", "exec"), names)
    shown = capsys.readouterr().out.splitlines()
    for said in ("[182, 74]", "[0, 1]"):
        assert f"# {said}" in text
        assert said in shown
    assert Path("trace.json").exists()
