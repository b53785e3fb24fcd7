# SPDX-License-Identifier: Apache-2.0
"""Converts a request and an answer of `atoll plan layers` to a plan for `atoll simulate`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from atoll.plan.chunks import named_pipelines

Document = dict[str, Any]
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zero-bubble": "ZB1P"}
_FASTEST = 1e18  # bytes per second of a link that takes no time


def plan_of(request: Mapping[str, Any], answer: Mapping[str, Any]) -> Document:
    """Returns a plan with the same stages, links and reductions. Every class of devices is an island, and every pair of
    classes has separate rails for each rank, because the planner's links are not shared. Raises ValueError for an
    answer without a plan."""
    if not answer.get("feasible", True):
        raise ValueError(f"the layers' plan is not feasible: {answer.get('reason', 'it has no stages')}")
    pipelines = answer.get("pipelines")
    if not pipelines or any("forward" not in stage for pipeline in pipelines for stage in pipeline["stages"]):
        raise ValueError("the layers' plan has no pipelines with times: use an answer of `atoll plan layers`")
    pipelines = named_pipelines(answer, "the layers' plan")
    items = list(_items(request))
    # With several stages on a rank PyTorch makes all ranks send and receive in lockstep. A rank that waits only for its
    # own transfers does not: it could wait for a rank that waits for it.
    in_step = answer.get("chunks", 1) > 1
    exposed = request.get("transfers", "exposed") == "exposed" and not in_step
    samples = answer["micro_batch"]
    schedule = answer.get("schedule", "1f1b")
    if schedule not in _SCHEDULES:
        raise ValueError(f"the layers' schedule {schedule!r} is not one of {', '.join(_SCHEDULES)}")
    return {
        "notes": ["from a plan of layers", *(["transfers run beside computing"] if in_step else [])],
        "ranks": _ranks(request, pipelines),
        "pipelines": [_pipeline(pipeline, items, samples) for pipeline in pipelines],
        "schedule": _SCHEDULES[schedule],
        **_links(request, exposed),
        "reductions": [*_reductions(items, pipelines), *_ties(request, items, pipelines)],
        "reduction": {"overlaps": request.get("gradients", "exposed") == "overlapped"},
    }


def _items(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for item in request["items"]:
        if "count" in item:
            yield from ({**item, "name": f"{item['name']}.{number}"} for number in range(item["count"]))
        else:
            yield item


def _ranks(request: Mapping[str, Any], pipelines: Sequence[Mapping[str, Any]]) -> list[Document]:
    found: dict[int, Document] = {}
    first = 0
    for device in request["devices"]:
        count = device.get("count", 1)
        numbers = device.get("ranks") or range(first, first + count)
        first += count
        rank = {"island": device["name"], "host": device.get("island", device["name"]), "class": device["name"]}
        if device.get("memory_bytes") is not None:
            rank["memory_bytes"] = device["memory_bytes"]
        found.update(dict.fromkeys(numbers, rank))
    last = max([*found, *(stage["rank"] for pipeline in pipelines for stage in pipeline["stages"])])
    return [found.get(number, {"island": "none"}) for number in range(last + 1)]


def _pipeline(pipeline: Mapping[str, Any], items: Sequence[Mapping[str, Any]], samples: int) -> Document:
    stages = []
    for stage in pipeline["stages"]:
        begin, end = stage["items"]
        own = items[begin:end]
        stages.append(
            {
                "name": f"items {begin} to {end - 1}", "forward": stage["forward"], "backward": stage["backward"],
                "accumulate": stage.get("accumulate", 0),
                "boundary_bytes": samples * own[-1].get("output_bytes", 0) if own and end < len(items) else 0,
                "weight_bytes": sum(_held(item) for item in own),
                "activation_bytes": samples * sum(_kept(item, stage.get("recompute", False)) for item in own),
            }
        )  # fmt: skip
    ranks = list(dict.fromkeys(stage["rank"] for stage in pipeline["stages"]))
    return {"ranks": ranks, "micro_batches": pipeline["micro_batches"], "stages": stages}


def _held(item: Mapping[str, Any]) -> float:
    return float(sum(item.get(key, 0) for key in ("weight_bytes", "gradient_bytes", "optimiser_bytes")))


def _kept(item: Mapping[str, Any], recomputes: bool) -> float:
    kept = item.get("kept_bytes", 0)
    return float(item.get("recompute_bytes", kept) if recomputes else kept)


def _links(request: Mapping[str, Any], exposed: bool) -> Document:
    """Returns rails, transports and rules for all pairs of classes that the planner's links name, by class or
    island."""
    devices = request["devices"]
    listed = {frozenset(link["between"]): link for link in request.get("links", [])}
    plan: Document = {"rails": {}, "transports": {}, "links": []}
    for place, one in enumerate(devices):
        for other in devices[place:]:
            islands = frozenset(each.get("island", each["name"]) for each in (one, other))
            classes = frozenset((one["name"], other["name"]))
            link = listed.get(classes) or listed.get(islands) or request.get("default_link") or {}
            name = f"{one['name']} - {other['name']}"
            per_byte = link.get("seconds_per_byte", 0)
            plan["rails"][name] = {"each": "rank", "bytes_per_second": 1 / per_byte if per_byte > 0 else _FASTEST}
            hops = [{"rail": name, "latency": link.get("latency", 0)}]
            plan["transports"][name] = {"hops": hops, "blocking": exposed}
            plan["links"].append({"between": "any", "islands": [one["name"], other["name"]], "transport": name})
    return plan


def _reductions(items: Sequence[Mapping[str, Any]], pipelines: Sequence[Mapping[str, Any]]) -> Iterator[Document]:
    """Yields one reduction for each range of items that no pipeline divides."""
    if len(pipelines) < 2:
        return
    cuts = sorted({cut for pipeline in pipelines for stage in pipeline["stages"] for cut in stage["items"]})
    for begin, end in pairwise(cuts):
        members = [[place, _stage_with(pipeline, begin)] for place, pipeline in enumerate(pipelines)]
        gradients = sum(item.get("gradient_bytes", 0) for item in items[begin:end])
        if end > begin:
            yield {"name": f"items {begin} to {end - 1}", "bytes": gradients, "members": members}


def _ties(
    request: Mapping[str, Any], items: Sequence[Mapping[str, Any]], pipelines: Sequence[Mapping[str, Any]]
) -> Iterator[Document]:
    """Yields a reduction in each pipeline for weights that several of its stages share."""
    places = {item["name"]: place for place, item in enumerate(items)}
    for tie in request.get("ties", []):
        for number, pipeline in enumerate(pipelines):
            held = sorted({_stage_with(pipeline, places[name]) for name in tie["items"]})
            by_rank = {pipeline["stages"][stage]["rank"]: stage for stage in reversed(held)}  # one copy per rank
            stages = sorted(by_rank.values())
            if len(stages) > 1:
                yield {
                    "name": " = ".join(tie["items"]), "bytes": tie.get("gradient_bytes", 0),
                    "members": [[number, stage] for stage in stages],
                }  # fmt: skip


def _stage_with(pipeline: Mapping[str, Any], item: int) -> int:
    for place, stage in enumerate(pipeline["stages"]):
        if stage["items"][0] <= item < stage["items"][1]:
            return place
    raise ValueError(f"item {item} is on no stage of a pipeline of the layers' plan")
