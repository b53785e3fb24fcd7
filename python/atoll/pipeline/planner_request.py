# SPDX-License-Identifier: Apache-2.0
"""Makes the request to the planner of layers (docs/plan-layers.md) from measurements, and a plan from its answer."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import nn

from atoll.pipeline.items import Parts, ties_of
from atoll.pipeline.measuring import Cost
from atoll.pipeline.plan import Pipe, Plan, Stage
from atoll.plan.chunks import named_pipelines
from atoll.plan.documents import plan_layers

ALIKE = 0.05
"""Devices of the same name and island whose times differ by less are one class."""
TIMES = ("forward", "backward", "accumulate")


@dataclass(frozen=True)
class Measured:
    """One rank's measurements."""

    device: str
    island: int
    memory_bytes: int  # 0: the limit is unknown
    costs: list[list[Cost]]

    def seconds(self) -> float:
        """The seconds of all items at the smallest measured number of samples."""
        return sum(item[0].forward + item[0].backward for item in self.costs if item)


@dataclass(frozen=True)
class Link:
    """The link between two ranks, in one direction."""

    a: int
    b: int
    latency: float
    seconds_per_byte: float


@dataclass(frozen=True)
class Wish:
    """The user's requirements for the step."""

    batch: int
    schedule: str
    replicas: int | Sequence[int]
    """Several choices only if `micro_batches` is open."""
    micro_batches: int | None = None
    """Per pipeline, on average."""
    recompute: str = "auto"
    margin: float = 0.1
    optimiser_states: float = 2
    """The number of values that the optimizer keeps per parameter."""
    chunks: int = 1
    """Stages on each rank, for an interleaved schedule."""


def request_of(
    whole: nn.Module, parts: Parts, output_bytes: Sequence[int], ranks: Sequence[Measured], links: Sequence[Link],
    wish: Wish,
) -> dict[str, Any]:  # fmt: skip
    """Returns the planner's request. `output_bytes`: the output bytes per sample of each item except the last. Raises
    ValueError if a device cannot hold some item."""
    classes = classes_of(ranks)
    return {
        "items": _items(whole, parts, output_bytes, ranks, classes, wish),
        "ties": _ties(whole, parts, wish),
        "devices": [_device(name, members, ranks) for name, members in classes.items()],
        "links": _links(classes, links),
        **_step(wish),
    }


def classes_of(ranks: Sequence[Measured]) -> dict[str, list[int]]:
    """Returns the ranks by class: of one island, with the same name, the same memory and the same speed."""
    alike: dict[tuple[int, str, int], list[int]] = {}
    for rank, own in enumerate(ranks):
        alike.setdefault((own.island, own.device, own.memory_bytes), []).append(rank)
    classes: dict[str, list[int]] = {}
    for (island, device, _), members in alike.items():
        fastest: float | None = None
        for rank in sorted(members, key=lambda each: (ranks[each].seconds(), each)):
            seconds = ranks[rank].seconds()
            if fastest is None or seconds > fastest * (1 + ALIKE):
                fastest, name = seconds, f"{device}, island {island}, class {len(classes)}"
                classes[name] = []
            classes[name].append(rank)
    return {name: sorted(members) for name, members in classes.items()}


def _items(
    whole: nn.Module, parts: Parts, output_bytes: Sequence[int], ranks: Sequence[Measured],
    classes: dict[str, list[int]], wish: Wish,
) -> list[dict[str, Any]]:  # fmt: skip
    found = []
    names = asked_names(parts)
    for number, item in enumerate(parts.items):
        # The same on all devices, except for what their kernels save.
        kept = max((round(cost.kept_bytes / cost.samples) for own in ranks for cost in own.costs[number]), default=0)
        asked: dict[str, Any] = {
            "name": names[number], "kind": item.kind,
            **_bytes({each for name in item.modules for each in whole.get_submodule(name).parameters()}, wish),
            "times": {name: _times(ranks, members, number, item.name) for name, members in classes.items()},
            "kept_bytes": kept,
        }  # fmt: skip
        if number < len(parts.items) - 1:
            asked["output_bytes"] = output_bytes[number]
        if item.kind == "block" and number:
            asked["recompute_bytes"] = min(kept, output_bytes[number - 1])
        found.append(asked)
    return found


def asked_names(parts: Parts) -> list[str]:
    """Returns by item its first module's name, as other runtimes use it; its own name if it has none or shares it."""
    first = [item.modules[0] if item.modules else item.name for item in parts.items]
    return [name if first.count(name) == 1 else item.name for name, item in zip(first, parts.items, strict=True)]


def _times(ranks: Sequence[Measured], members: Sequence[int], number: int, name: str) -> list[list[float]]:
    """Returns the mean times of a class, at the numbers of samples that fit on all its ranks."""
    by_rank = [{cost.samples: cost for cost in ranks[rank].costs[number]} for rank in members]
    if not (sizes := sorted(set.intersection(*(set(costs) for costs in by_rank)))):
        raise ValueError(
            f"the memory of rank {members[0]} ({ranks[members[0]].device}) cannot hold item {name!r} with one "
            "micro-batch: use more micro_batches, so that each has fewer samples, or leave the rank out"
        )
    return [[size, *(fmean(getattr(costs[size], part) for costs in by_rank) for part in TIMES)] for size in sizes]


def _bytes(held: Collection[nn.Parameter], wish: Wish) -> dict[str, int]:
    trained = sum(each.numel() * each.element_size() for each in held if each.requires_grad)
    return {
        "weight_bytes": sum(each.numel() * each.element_size() for each in held),
        "gradient_bytes": trained,
        "optimiser_bytes": round(wish.optimiser_states * trained),
    }


def _ties(whole: nn.Module, parts: Parts, wish: Wish) -> list[dict[str, Any]]:
    found = []
    for names in ties_of(whole):
        items = [
            shown for shown, item in zip(asked_names(parts), parts.items, strict=True)
            if any(name.startswith(f"{module}.") for name in names for module in item.modules)
        ]  # fmt: skip
        if len(items) > 1:
            found.append({"items": items, "apart": True, **_bytes([whole.get_parameter(names[0])], wish)})
    return found


def _device(name: str, members: Sequence[int], ranks: Sequence[Measured]) -> dict[str, Any]:
    first = ranks[members[0]]
    limit = {"memory_bytes": first.memory_bytes} if first.memory_bytes else {}
    return {"name": name, "count": len(members), "ranks": list(members), "island": str(first.island), **limit}


def _links(classes: dict[str, list[int]], links: Sequence[Link]) -> list[dict[str, Any]]:
    """Returns the slowest measured pair of every two classes. For others the planner's default applies."""
    class_of = {rank: name for name, members in classes.items() for rank in members}
    slowest: dict[tuple[str, str], Link] = {}
    for link in links:
        a, b = sorted((class_of[link.a], class_of[link.b]))
        known = slowest.get((a, b))
        if known is None or link.seconds_per_byte > known.seconds_per_byte:
            slowest[a, b] = link
    return [
        {"between": list(pair), "latency": link.latency, "seconds_per_byte": link.seconds_per_byte}
        for pair, link in sorted(slowest.items())
    ]


def _step(wish: Wish) -> dict[str, Any]:
    step: dict[str, Any] = {
        "batch": wish.batch, "schedule": wish.schedule, "recompute": wish.recompute, "margin": wish.margin,
        "replicas": wish.replicas if isinstance(wish.replicas, int) else list(wish.replicas),
    }  # fmt: skip
    if wish.micro_batches is not None and isinstance(wish.replicas, int):
        step["micro_batch"] = wish.batch // (wish.replicas * wish.micro_batches)
    if wish.schedule == "interleaved":
        step["chunks"] = wish.chunks
    return step


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the planner's answer. Raises ValueError if no plan fits, and names the nearest that would."""
    answer = plan_layers(request)
    if not answer["feasible"]:
        nearest = "; ".join(change["text"] for change in answer["nearest"])
        raise ValueError(f"no plan fits the devices' memory: {answer['reason']}. Nearest: {nearest or 'none'}")
    return answer


def plan_of(answer: dict[str, Any], name: str = "the planner's answer") -> Plan:
    """Converts an answer to a plan. Raises ValueError, with the answer's `name`, if it does not assign all items."""
    pipes = []
    for pipeline in named_pipelines(answer, name):
        stages = [
            Stage(begin, end, each["rank"], bool(each["recompute"]))
            for each in pipeline["stages"] for begin, end in [each["items"]]
        ]  # fmt: skip
        pipes.append(Pipe(tuple(stages), pipeline["micro_batches"]))
    return Plan(tuple(pipes), answer)
