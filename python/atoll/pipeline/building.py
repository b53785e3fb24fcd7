# SPDX-License-Identifier: Apache-2.0
"""Turns the user's arguments into a plan that all ranks agree on."""

import copy
import json
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atoll._build_info import VERSION
from atoll.loading.communication import islands_of
from atoll.loading.exchange import Exchange
from atoll.pipeline.exchange_cost import under_load
from atoll.pipeline.families import parts_of
from atoll.pipeline.initial import Draw, check_rules, without_data
from atoll.pipeline.items import Parts, check_parts, ties_of
from atoll.pipeline.losses import Loss
from atoll.pipeline.measuring import Example, Measuring
from atoll.pipeline.memory_fit import check_fits
from atoll.pipeline.packing import Packing
from atoll.pipeline.plan import Plan, check_plan, equal_counts, from_counts, ranks_in_lines
from atoll.pipeline.plan_choice import best_plan
from atoll.pipeline.planner_request import Link, Measured, Wish, plan_of, request_of
from atoll.pipeline.schedules import Kind, schedule_of
from atoll.pipeline.settings import Settings
from atoll.pipeline.stage import Computing, passes
from atoll.plan.documents import record_of
from atoll.profiling.device_memory import usable_bytes
from atoll.profiling.isolation import same_random_numbers

PlanLike = str | Path | Plan | dict[str, Any] | Sequence[int]
SIZES = (1, 2, 4, 8)
AUTO = "auto"
SAME_ARGUMENTS = "Give all ranks the same arguments, the same model and the same Atoll."


@dataclass(frozen=True)
class Wanted:
    """The user's arguments of Pipeline."""

    model: nn.Module | Callable[[], nn.Module]
    example: Example
    plan: PlanLike
    schedule: str
    micro_batches: int | list[int] | None
    replicas: int | str
    recompute: bool | Sequence[bool] | None
    autocast: torch.dtype | None
    items: Sequence[str] | Parts | None
    loss: Loss
    initial: Draw | None
    seed: int
    settings: Settings
    packing: Packing


@dataclass(frozen=True)
class Known:
    """One rank's knowledge of the model before there is a plan."""

    whole: nn.Module
    """The model without data."""
    source: nn.Module | None
    """The model with data, if the user passed one."""
    parts: Parts
    between: list[torch.Tensor]
    """The output of each item, without data."""
    kind: Kind
    plan: Plan | None
    """None: to be made from measurements."""


def know(wanted: Wanted, device: torch.device, ranks: int) -> tuple[Known, dict[str, Any]]:
    """Returns what this rank knows, and what must be equal on all. Raises ValueError or TypeError if it is invalid."""
    kind = schedule_of(wanted.schedule)
    if wanted.autocast is torch.float16:
        raise ValueError(
            "autocast=torch.float16 needs losses scaled against underflow, which a pipeline does not support: use "
            "torch.bfloat16"
        )
    if wanted.autocast is not None and not torch.amp.is_autocast_available(device.type):
        raise ValueError(f"autocast={wanted.autocast}: PyTorch has no autocast for {device.type}; remove it")
    whole, source = without_data(wanted.model)
    parts = parts_of(whole, wanted.items)
    check_parts(whole, parts)
    ties_of(whole)
    if source is None and wanted.initial is None:
        check_rules(whole, parts.modules(range(len(parts.items))))
    inputs = wanted.example.inputs
    between = passes(whole, parts, inputs[:1])
    plan = _given_plan(wanted, parts, kind, ranks)
    if plan is None:
        _wish(wanted, ranks)
    else:
        check_plan(plan, parts, kind, ranks)
        _check_passed(plan, parts, between, kind)
    shapes = [[name, list(each.shape), str(each.dtype), each.requires_grad] for name, each in whole.named_parameters()]
    facts = {
        "Atoll": VERSION, "items": parts.names, "parameters": shapes, "schedule": wanted.schedule,
        "replicas": wanted.replicas, "micro_batches": wanted.micro_batches, "seed": wanted.seed,
        "plan": "auto" if plan is None else plan.to_json()["pipes"], "autocast": str(wanted.autocast),
        "recompute": wanted.recompute, "example": [list(inputs.shape), str(inputs.dtype)],
        "example with labels": wanted.example.labels is not None, "model with data": source is not None,
        "initial given": wanted.initial is not None, "loss given": wanted.loss != Loss(),
        **asdict(wanted.packing),
        "settings": {name: value for name, value in asdict(wanted.settings).items() if name != "memory_bytes"},
    }  # fmt: skip
    return Known(whole, source, parts, between, kind, plan), facts


def _given_plan(wanted: Wanted, parts: Parts, kind: Kind, ranks: int) -> Plan | None:
    """Returns the user's plan; None: measure."""
    plan, name = wanted.plan, "the planner's answer"
    if isinstance(plan, Path) or (isinstance(plan, str) and plan.endswith(".json")):
        name = f"the plan {str(plan)!r}"
        plan = json.loads(Path(plan).read_text())
    if isinstance(plan, dict):
        if "pipelines" not in plan and "pipes" not in plan:
            reason = plan.get("reason", "it is not a plan")
            raise ValueError(f"{name} has no pipelines: {reason}; request a plan that fits, and pass that")
        plan = plan_of(plan, name) if "pipelines" in plan else Plan.from_json(plan)
    if isinstance(plan, Plan):
        _check_repeated(wanted, plan)
        return plan
    if plan == "auto":
        return None
    lines = ranks_in_lines(ranks, _replicas(wanted))
    if plan == "equal":
        plan = equal_counts(parts, len(lines[0]) * (kind.chunks or wanted.settings.chunks))
    if isinstance(plan, str):
        raise ValueError(f'plan {plan!r}: pass "auto", "equal", blocks of each stage such as [15, 17], or a plan')
    return from_counts(plan, parts, lines, kind, _each(wanted), wanted.recompute or False)


def _check_repeated(wanted: Wanted, plan: Plan) -> None:
    """Raises ValueError if arguments contradict the plan."""
    way_out = "remove it, or pass numbers of blocks or plan='auto'"
    counts, pipes = wanted.micro_batches, len(plan.pipes)
    is_so = sum(plan.shares) == counts * pipes if isinstance(counts, int) else counts in (None, plan.shares)
    if not is_so:
        raise ValueError(f"micro_batches={counts}, but the plan has {plan.shares} for its pipelines: {way_out}")
    if wanted.replicas not in (1, AUTO, pipes):  # 1 is the default
        raise ValueError(f"replicas={wanted.replicas}, but the plan has {pipes} pipelines: {way_out}")
    if wanted.recompute is None:
        return
    for pipe in plan.pipes:
        has = [stage.recompute for stage in pipe.stages]
        wishes = [wanted.recompute] * len(has) if isinstance(wanted.recompute, bool) else list(wanted.recompute)
        if has != wishes:
            raise ValueError(f"recompute={wanted.recompute}, but the plan has {has} for its stages: {way_out}")


def _check_passed(plan: Plan, parts: Parts, between: Sequence[torch.Tensor], kind: Kind) -> None:
    """Raises ValueError if the schedule needs gradients of a stage's inputs, but a stage's input has none."""
    if not kind.splits_backward:
        return
    for end in (stage.last for pipe in plan.pipes for stage in pipe.stages[:-1]):
        if not between[end - 1].is_floating_point():
            raise ValueError(
                f"schedule {kind.name!r} computes gradients of parameters from those of a stage's inputs, but item "
                f"{parts.names[end - 1]!r}, the last of a stage, gives {between[end - 1].dtype}, which has none: cut "
                "elsewhere, or use schedule '1f1b', 'gpipe' or 'interleaved'"
            )


def _replicas(wanted: Wanted) -> int:
    """Returns the number of replicas. Raises ValueError if it is open or invalid."""
    if wanted.replicas == AUTO:
        raise ValueError("replicas='auto' needs plan='auto': pass the number of pipelines")
    if not isinstance(wanted.replicas, int):
        raise ValueError(f"replicas={wanted.replicas!r}: pass a number of pipelines, or 'auto' with plan='auto'")
    return wanted.replicas


def _each(wanted: Wanted) -> list[int]:
    """Returns the micro-batches of each pipeline."""
    replicas = _replicas(wanted)
    if wanted.micro_batches is None:
        raise ValueError("micro_batches is missing, and only plan='auto' finds it: pass the number per step")
    if isinstance(wanted.micro_batches, int):
        return [wanted.micro_batches] * replicas
    if len(wanted.micro_batches) != replicas:
        raise ValueError(
            f"micro_batches has {len(wanted.micro_batches)} numbers for {replicas} pipelines: pass one for "
            "each, or one for all"
        )
    return wanted.micro_batches


def _wish(wanted: Wanted, ranks: int) -> Wish:
    """Returns the requirements for the planner. Raises ValueError for those that it does not support."""
    if wanted.schedule == "zbv":
        raise ValueError(
            "plan='auto' does not support the schedule 'zbv': pass numbers of blocks, or use 'zero-bubble'"
        )
    if not isinstance(wanted.recompute, bool | None):
        raise ValueError("recompute for each stage needs a plan of your own: with 'auto' pass True, False or None")
    if not isinstance(wanted.micro_batches, int | None):
        raise ValueError("plan='auto' finds the micro_batches of each pipeline: pass one number, the mean, or none")
    batch, count = len(wanted.example.inputs), wanted.micro_batches
    if count is not None and count < 1:
        raise ValueError(f"micro_batches={count}: give at least 1")
    replicas: int | list[int]
    if wanted.replicas == AUTO:
        if count is not None:
            raise ValueError(
                f"micro_batches={count} is per pipeline, but replicas='auto' leaves their number open: remove "
                "micro_batches (Settings(sizes=...) sets the sizes to choose from), or pass replicas"
            )
        # Numbers that give pipelines of equally many ranks, which a loader needs.
        replicas, samples = [each for each in range(1, ranks + 1) if ranks % each == 0], batch
    else:
        replicas = _replicas(wanted)
        if replicas < 1 or batch % (replicas * (count or 1)):
            raise ValueError(
                f"the example has {batch} samples, which cannot be divided into {count or 1} micro-batches of one size "
                f"for each of {replicas} pipelines: with plan='auto' pass the inputs of a whole step of all pipelines"
            )
        samples = batch // replicas
    if not _sizes_of(samples, count, wanted.settings):
        raise ValueError(
            f"none of Settings(sizes={list(wanted.settings.sizes or SIZES)}) divides the {samples} samples of a "
            "pipeline: pass sizes that do"
        )
    recompute = False if wanted.schedule == "zero-bubble" else wanted.recompute
    again = {None: "auto", True: "always", False: "never"}[recompute]
    of = wanted.settings
    return Wish(batch, wanted.schedule, replicas, count, again, of.margin, of.optimiser_states, of.chunks)


Found = tuple[Plan, dict[str, Any] | None]
"""A plan, and all ranks' measurements for it as a request of `atoll plan layers`; None if nothing was measured."""


def find_plan(wanted: Wanted, known: Known, device: torch.device, exchange: Exchange) -> Found:
    """Measures devices and links and calls the planner. Collective. Raises ValueError on all ranks if nothing fits."""
    wish = _wish(wanted, exchange.ranks)
    sizes = _sizes(wanted, wish, known.kind, exchange.ranks)
    asked = _measure_all_ranks(wanted, known, device, exchange, sizes)

    def planned() -> tuple[Found, dict[str, Any]]:
        request = asked(wish)
        plan = best_plan(request, known.kind)
        check_plan(plan, known.parts, known.kind, exchange.ranks)
        _check_passed(plan, known.parts, known.between, known.kind)
        return (plan, request), {"plan": plan.to_json()["pipes"]}

    return exchange.agree("atoll.pipeline.Pipeline", planned, SAME_ARGUMENTS)


def given_plan(wanted: Wanted, known: Known, device: torch.device, exchange: Exchange) -> Found | None:
    """Returns the user's plan; None if it is to be made from measurements. Collective. If Settings set some rank's
    memory, each item is measured, and ValueError is raised on all ranks for a plan that does not fit."""
    plan = known.plan
    limits = exchange.facts(wanted.settings.memory_bytes or 0)
    if plan is None:
        return None
    if not any(limits):
        return plan, None
    size = max(1, len(wanted.example.inputs) // sum(plan.shares))
    schedule, again = ("zero-bubble", "never") if known.kind.splits_backward else (wanted.schedule, "auto")
    of = wanted.settings
    wish = Wish(size * sum(plan.shares), schedule, len(plan.pipes), None, again, of.margin, of.optimiser_states)
    asked = _measure_all_ranks(wanted, known, device, exchange, [size], limits)

    def checked() -> tuple[Found, dict[str, Any]]:
        request = {**asked(wish), "micro_batch": size}
        check_fits(plan, known.parts, known.kind, request)
        return (plan, request), {}

    return exchange.agree("atoll.pipeline.Pipeline", checked, SAME_ARGUMENTS)


def _measure_all_ranks(
    wanted: Wanted, known: Known, device: torch.device, exchange: Exchange, sizes: Sequence[int],
    limits: Sequence[int] | None = None,
) -> Callable[[Wish], dict[str, Any]]:  # fmt: skip
    """Measures micro-batches of these sizes and the links, and returns a function that makes the planner's request from
    a wish. Collective. `limits`: the memory of each rank, instead of what it may use."""
    hosts = exchange.facts(socket.gethostname())
    islands = islands_of(exchange.group) or [list(range(exchange.ranks))]
    island = next(number for number, members in enumerate(islands) if exchange.rank in members)
    measuring = Measuring(
        copy.deepcopy(known.whole), known.parts, wanted.example, wanted.loss, Computing(autocast=wanted.autocast),
        device, wanted.seed, wanted.initial, known.source,
    )  # fmt: skip
    name = measuring.fingerprint(sizes, hosts.count(hosts[exchange.rank]))
    earlier = measuring.earlier(name) if wanted.settings.reuse else None
    if not all(have == [1.0] for have in exchange.numbers([0.0 if earlier is None else 1.0])):
        earlier = None  # ranks share buses and power, so all of them measure, or none

    def own() -> tuple[Measured, dict[str, Any]]:
        costs = measuring.costs(name, sizes) if earlier is None else earlier
        memory = wanted.settings.memory_bytes or usable_bytes(device)
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return Measured(kind, island, memory, costs), {}

    with same_random_numbers(device):  # without an earlier profile dropout draws some
        measured = exchange.agree("atoll.pipeline.Pipeline", own, SAME_ARGUMENTS)
        everyone = [record_of(Measured, facts) for facts in exchange.facts(asdict(measured))]
        ratio = wanted.packing.link_ratio(known.between, 1 if wanted.replicas == 1 else 2)
        links = _measured_links(exchange, islands, ratio)
        links = _under_load(known, exchange, measuring, everyone, links)
    output_bytes = [each.numel() // len(each) * each.element_size() for each in known.between]
    if limits is not None:
        everyone = [replace(each, memory_bytes=limit) for each, limit in zip(everyone, limits, strict=True)]
    return lambda wish: request_of(known.whole, known.parts, output_bytes, everyone, links, wish)


def _sizes(wanted: Wanted, wish: Wish, kind: Kind, ranks: int) -> list[int]:
    """Returns the sizes that the schedule supports for equally long pipelines; all sizes if it supports none."""
    counts = [wish.replicas] if isinstance(wish.replicas, int) else wish.replicas
    sizes = _sizes_of(wish.batch // counts[0], wish.micro_batches, wanted.settings)

    def is_able(size: int, replicas: int) -> bool:
        stages = max(1, ranks // replicas)
        return kind.is_possible(wish.batch // replicas // size, stages, stages)

    return [size for size in sizes if any(is_able(size, count) for count in counts)] or sizes


def _sizes_of(samples: int, micro_batches: int | None, settings: Settings) -> list[int]:
    """Returns the micro-batch sizes to measure for a pipeline with `samples` samples per step."""
    if micro_batches is not None:
        return [samples // micro_batches]
    return [size for size in settings.sizes or SIZES if samples % size == 0]


def _under_load(
    known: Known, exchange: Exchange, measuring: Measuring, everyone: Sequence[Measured], links: list[Link]
) -> list[Link]:
    """Returns the links as measured while both ends compute a block. Collective."""
    number = known.parts.blocks[0] if known.parts.blocks else 0
    held = [own.costs[number] for own in everyone]
    if not links or not all(held) or number + 1 >= len(known.parts.items):
        return links
    if not known.between[number].is_floating_point():
        return links  # without a gradient
    samples = max(costs[0].samples for costs in held)

    def own() -> tuple[Callable[[], torch.Tensor], dict[str, Any]]:
        work = measuring.work(number, samples)
        given = work()
        return work, {"a block's output": [list(given.shape), str(given.dtype)]}

    work = exchange.agree("atoll.pipeline.Pipeline", own, SAME_ARGUMENTS)
    return under_load(exchange, everyone, links, work)


def _measured_links(exchange: Exchange, islands: list[list[int]], ratio: float) -> list[Link]:
    """Returns the slower direction of each pair; only the share `ratio` of bytes crosses islands. Collective."""
    from atoll.doctor.links import measure

    if exchange.ranks == 1:
        return []
    found = []
    for pair in (pair for pairs in exchange.facts(measure(exchange.group, islands)) for pair in pairs):
        crosses = not any(pair["a"] in ranks and pair["b"] in ranks for ranks in islands)
        per_byte = 1 / (min(pair["a_to_b"], pair["b_to_a"]) * 1e9)
        found.append(Link(pair["a"], pair["b"], pair["latency_us"] * 1e-6, per_byte * ratio if crosses else per_byte))
    return found
