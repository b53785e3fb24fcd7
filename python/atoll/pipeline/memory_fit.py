# SPDX-License-Identifier: Apache-2.0
"""Checks that the user's plan fits the memory set in Settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll.pipeline.items import Parts
from atoll.pipeline.plan import Pipe, Plan, Stage
from atoll.pipeline.planner_request import plan_of
from atoll.pipeline.schedules import Kind
from atoll.plan.documents import plan_layers, price_layers

Request = dict[str, Any]


def check_fits(plan: Plan, parts: Parts, kind: Kind, request: Request) -> None:
    """Raises ValueError for a plan that does not fit the memories in `request`, the planner's request for its devices.
    The error names the stage that exceeds its limit most, its bytes, the limit, and the nearest plan that fits."""
    several = any(len(pipe.stages) > len(pipe.ranks) for pipe in plan.pipes)
    lacks, answer = _of_ranks(plan, kind, request) if several else _of_stages(plan, request)
    if not lacks:
        return
    worst = max(lacks, key=lambda lack: lack.needed - lack.limit)
    named = " and ".join(f"stage {number} ({stage.shown(parts)})" for number, stage in worst.stages)
    plural = "" if len(worst.stages) > 1 else "s"
    raise ValueError(
        f"the plan does not fit the given memory: {named} need{plural} {worst.needed:.0f} bytes on rank "
        f"{worst.rank}, but Settings(memory_bytes=..., margin={request['margin']:g}) leave {worst.limit:.0f}; "
        f"{_way_out(answer, parts, kind)}"
    )


@dataclass(frozen=True)
class Lack:
    """A rank whose stages need more than its limit; stages with their numbers in the pipeline."""

    rank: int
    stages: list[tuple[int, Stage]]
    needed: float
    limit: float


def _of_stages(plan: Plan, request: Request) -> tuple[list[Lack], dict[str, Any]]:
    """Returns the lacks of a plan with one stage per rank, as priced by the planner."""
    classes = _classes(request)
    pipelines = [
        {"micro_batches": pipe.micro_batches, "stages": [
            {"items": [stage.first, stage.last], "device": classes[stage.rank]["name"], "recompute": stage.recompute}
            for stage in pipe.stages
        ]} for pipe in plan.pipes
    ]  # fmt: skip
    answer = price_layers({**request, "plan": {"micro_batch": request["micro_batch"], "pipelines": pipelines}})
    lacks = [
        Lack(stage.rank, [(number, stage)], of["memory_bytes"], of["memory_cap_bytes"])
        for pipe, priced in zip(plan.pipes, answer["pipelines"], strict=True)
        for number, (stage, of) in enumerate(zip(pipe.stages, priced["stages"], strict=True)) if not of["fits"]
    ]  # fmt: skip
    return lacks, answer


def _of_ranks(plan: Plan, kind: Kind, request: Request) -> tuple[list[Lack], dict[str, Any]]:
    """Returns the lacks of a plan with several stages on a rank, which the planner does not support: what they keep is
    spread evenly over them."""
    classes = _classes(request)
    lacks: list[Lack] = []
    for pipe in plan.pipes:
        for position, rank in enumerate(pipe.ranks):
            held = [(number, stage) for number, stage in enumerate(pipe.stages) if stage.rank == rank]
            limit = classes[rank].get("memory_bytes", float("inf")) * (1 - request["margin"])
            needed = _bytes([stage for _, stage in held], _in_flight(pipe, kind, position), request)
            if needed > limit:
                lacks.append(Lack(rank, held, needed, limit))
    return lacks, plan_layers(request) if lacks else {}


def _classes(request: Request) -> dict[int, dict[str, Any]]:
    return {rank: device for device in request["devices"] for rank in device["ranks"]}


def _in_flight(pipe: Pipe, kind: Kind, position: int) -> float:
    """Returns the micro-batches whose activations all stages of the rank hold at once, as the planner counts them."""
    positions, stages = len(pipe.ranks), len(pipe.stages)
    if kind.splits_backward:
        return min(positions, pipe.micro_batches)
    chunks = stages // positions
    held = 2 * (positions - position - 1) + (chunks - 1) * positions + 1
    return min(held, pipe.micro_batches * chunks) / chunks


def _bytes(stages: Sequence[Stage], in_flight: float, request: Request) -> float:
    """Returns the bytes of all stages of a rank."""
    samples = request["micro_batch"]
    needed, again, names = 0.0, 0.0, []
    for stage in stages:
        for item in (request["items"][number] for number in stage.numbers):
            names.append(item["name"])
            twice = stage.recompute and "recompute_bytes" in item
            kept = item["recompute_bytes"] if twice else item["kept_bytes"]
            needed += _state(item) + in_flight * samples * kept
            again = max(again, samples * item["kept_bytes"] if twice else 0.0)
    needed += again
    for tie in request["ties"]:
        needed -= max(0, sum(name in names for name in tie["items"]) - 1) * _state(tie)
    return needed


def _state(of: dict[str, Any]) -> float:
    return float(of["weight_bytes"] + of["gradient_bytes"] + of["optimiser_bytes"])


def _way_out(answer: dict[str, Any], parts: Parts, kind: Kind) -> str:
    """Describes the nearest plan that fits, and how to use it."""
    if answer["feasible"]:  # the planner's own plan, if the user's could not be priced
        schedule = " and schedule='zero-bubble'" if kind.is_v else ""
        return f"nearest that fits, with one stage on each rank{schedule}: {_shown(answer, parts)}; pass that plan"
    for change in answer["nearest"]:
        if change["change"] == "stages":
            return f"nearest that fits: {_shown(change, parts)}; pass that, or plan='auto'"
    nearest = [f"{change['text']} ({_shown(change, parts)})" for change in answer["nearest"]]
    return f"no plan of these ranks and micro-batches does; nearest with {'; or with '.join(nearest) or 'nothing'}"


def _shown(found: dict[str, Any], parts: Parts) -> str:
    return ", then ".join(
        f"{stage.shown(parts)} on rank {stage.rank}{', computed twice' if stage.recompute else ''}"
        for pipe in plan_of({"pipelines": found["pipelines"]}).pipes for stage in pipe.stages
    )  # fmt: skip
