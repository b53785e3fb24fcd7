# SPDX-License-Identifier: Apache-2.0
"""Chooses the plan to build among the planner's plans."""

from collections.abc import Sequence
from typing import Any

from atoll.pipeline.plan import Plan, nearest_shares
from atoll.pipeline.planner_request import ask, plan_of
from atoll.pipeline.schedules import Kind
from atoll.plan import from_layers
from atoll.plan.chunks import names_chunks
from atoll.plan.documents import price_layers, simulate


def best_plan(request: dict[str, Any], kind: Kind) -> Plan:
    """Returns the faster in simulation of the planner's fastest plans with exposed and with overlapped transfers: its
    formula cannot know when a schedule hides a transfer. Raises ValueError if nothing fits, and names what would."""
    plan = _fastest(request, kind)
    try:
        other = _fastest({**request, "transfers": "overlapped"}, kind)
    except ValueError:  # shares that the schedule does not support
        return plan
    has_chunks = any(len(pipe.stages) > len(pipe.ranks) for pipe in (*plan.pipes, *other.pipes))
    if other.pipes == plan.pipes or has_chunks:  # plans with chunks cannot be priced
        return plan
    note = "in simulation this plan's step is shorter than that of the plan which the formula finds faster"
    answer = _priced(request, other.answer, other.answer["pipelines"], note)
    if not answer["feasible"] or simulated_seconds(request, answer) >= simulated_seconds(request, plan.answer):
        return plan
    return plan_of(answer)


def simulated_seconds(request: dict[str, Any], answer: dict[str, Any]) -> float:
    return float(simulate(from_layers.plan_of(request, answer))["step_seconds"])


def _priced(
    request: dict[str, Any], answer: dict[str, Any], pipelines: Sequence[dict[str, Any]], note: str
) -> dict[str, Any]:
    """Returns the planner's answer for given `pipelines` instead of its own."""
    priced = price_layers({**request, "plan": {"micro_batch": answer["micro_batch"], "pipelines": pipelines}})
    if not priced["feasible"]:
        return priced
    proof = {**answer.get("exact", {}), "search": False}
    changed = {**answer, **priced, "exact": proof, "notes": [*answer.get("notes", []), note]}
    if alone := changed.get("homogeneous"):
        changed["homogeneous"] = {**alone, "wins": alone["seconds"] < changed["seconds"]}
    return changed


def with_possible_shares(plan: Plan, kind: Kind, request: dict[str, Any]) -> Plan:
    """Returns the planner's plan. If the schedule does not support its micro-batches, returns it with the nearest
    supported ones, equally many in total, with a new price. `request`: the planner's request. Raises ValueError if
    there are none, or they do not fit the devices' memory."""
    if all(kind.is_possible(pipe.micro_batches, len(pipe.ranks), len(pipe.stages)) for pipe in plan.pipes):
        return plan
    stages = [len(pipe.stages) for pipe in plan.pipes]
    shares = nearest_shares(plan, kind)
    way_out = (
        f"use micro_batches={max(stages)} or a multiple of it, with as many samples, fewer replicas, or "
        "schedule='gpipe', which supports any number"
    )
    if shares is None:
        raise ValueError(
            f"schedule {kind.name!r} cannot divide the {sum(plan.shares)} micro-batches of a step between pipelines of "
            f"{stages} stages: {way_out}"
        )
    pipelines = [
        {**pipeline, "micro_batches": share} for pipeline, share in zip(plan.answer["pipelines"], shares, strict=True)
    ]
    note = f"micro-batches by pipeline are {shares}, not {plan.shares}, which {kind.name} does not support"
    changed = _priced(request, plan.answer, pipelines, note)
    if not changed["feasible"]:
        raise ValueError(
            f"schedule {kind.name!r} supports {shares} instead of the planner's {plan.shares} micro-batches, but these "
            f"exceed the devices' memory: {way_out}"
        )
    return plan_of(changed)


def _fastest(request: dict[str, Any], kind: Kind) -> Plan:
    """Returns the fastest plan that the schedule supports. If the request leaves the number of pipelines open, it is
    the fastest of those whose micro-batches the schedule supports. If an interleaved schedule has more chunks than
    items or memories allow, fewer are used. Raises ValueError if nothing fits, and names what would."""
    counts = [request["replicas"]] if isinstance(request["replicas"], int) else list(request["replicas"])
    best: Plan | None = None
    problems: list[ValueError] = []
    while counts:
        asked = {**request, "replicas": counts}
        try:
            answer = ask(asked)
            while not names_chunks(answer):
                asked["chunks"] = answer["chunks"] - 1
                answer = ask(asked)
        except ValueError as error:  # smaller numbers of pipelines do not fit either
            problems.append(error)
            break
        if best is not None and answer["seconds"] >= best.answer["seconds"]:
            break
        counts.remove(answer["replicas"])
        found = plan_of(answer)
        try:
            plan = with_possible_shares(found, kind, asked)
        except ValueError as error:
            problems.append(error)
            continue
        if best is None or plan.answer["seconds"] < best.answer["seconds"]:
            best = plan
        if plan is found:  # the fastest of all that remain
            break
    if best is None:
        raise problems[0]
    return best
