# SPDX-License-Identifier: Apache-2.0
"""Predictions of plans by the planner and the simulator, from what the ranks of one layout measured of their devices
and links."""

from collections.abc import Sequence
from typing import Any

from atoll.plan.documents import price_layers, simulate
from atoll.plan.from_layers import plan_of
from pipelines_cases import cut_plan, items

Document = dict[str, Any]


def predict(request: Document, plan: Document) -> dict[str, float]:
    """Returns the seconds of the passes of one step, by the planner's formula and by the simulator. Raises RuntimeError
    for a plan that does not fit."""
    answer = _priced(request, plan)
    simulated = simulate(plan_of(request, answer))
    return {"planned_s": answer["seconds"], "simulated_s": simulated["step_seconds"]}


def _priced(request: Document, plan: Document) -> Document:
    answer = price_layers({**request, "plan": as_asked(request, plan)})
    if not answer["feasible"]:
        raise RuntimeError(answer["reason"])
    return answer


def stages_of(request: Document, plan: Document) -> list[Document]:
    """Returns the stages of all pipelines, with the planner's seconds per micro-batch."""
    return [stage for pipe in _priced(request, plan)["pipelines"] for stage in pipe["stages"]]


def as_asked(request: Document, plan: Document) -> Document:
    """Converts a pipeline's plan to what `price_layers` reads."""
    classes = {rank: device["name"] for device in request["devices"] for rank in device["ranks"]}
    pipelines = [
        {
            "micro_batches": pipe["micro_batches"],
            "stages": [
                {
                    "items": [stage["first"], stage["last"]], "device": classes[stage["rank"]],
                    "recompute": stage["recompute"],
                }
                for stage in pipe["stages"]
            ],
        }
        for pipe in plan["pipes"]
    ]  # fmt: skip
    return {"micro_batch": request["micro_batch"], "pipelines": pipelines}


def best_cut(request: Document, lines: list[list[int]], blocks: int, micro_batches: int) -> Document:
    """Returns a plan of pipelines with two stages on these ranks, all cut where the planner predicts the shortest
    step."""
    plans = [cut_plan(lines, cut, blocks, micro_batches) for cut in range(1, items(blocks))]
    return min(plans, key=lambda plan: predict(request, plan)["planned_s"])


def head_blocks(request: Document) -> float:
    """Returns the weight of norm and head, in blocks."""
    (name, *_) = request["items"][0]["times"]

    def seconds(of: Sequence[Document]) -> float:
        return sum(sum(item["times"][name][0][1:]) for item in of)

    whole: list[Document] = request["items"]
    blocks = [item for item in whole if item["kind"] == "block"]
    return seconds(whole[-2:]) * len(blocks) / seconds(blocks)
