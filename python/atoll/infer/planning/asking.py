# SPDX-License-Identifier: Apache-2.0
"""Requests to the planner of divided inferences, and its answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.infer.planning import models, rates, trace
from atoll.infer.planning.watts import watts_of

SCHEMA = 1
_SEARCH_SECONDS = 0.5  # generous, so that a slow machine finds what a fast one finds


@dataclass
class Question:
    """The request of `atoll plan infer`; rates are in bytes per second."""

    profile: str
    rate: float | None = None
    down: float | None = None
    latency: float = 0.0
    half_duplex: bool = False
    trace: str = ""
    period: float = 0.0
    policies: Sequence[str] = field(default_factory=list)
    deadline: float | None = None
    input_bytes: int | None = None
    chunks: int = 8
    literal: bool = False
    seed: int = 0
    watts: str = ""


def ask(question: Question) -> dict[str, Any]:
    """Returns everything that is shown. Raises ValueError that names the problem and the way out."""
    from atoll.plan.documents import plan_operators

    model = models.read(question.profile, question.input_bytes)
    recorded = trace.read(question.trace) if question.trace else None
    rate = question.rate or (recorded.median() if recorded else None)
    if not rate:
        raise ValueError("the rate of the link is missing: give --rate 93M, or --trace FILE with a median above 0")
    power, power_source = watts_of(question.watts, model.source, model.name)
    if model.watts and not question.watts:
        power, power_source = model.watts, model.watts_source
    link: dict[str, Any] = {"up": rate, "latency": question.latency, "half_duplex": question.half_duplex}
    if question.down:
        link["down"] = question.down
    request: dict[str, Any] = {
        "model": model.request, "link": link, "power": power, "chunks": question.chunks, "literal": question.literal,
        "seed": question.seed, "search_seconds": _SEARCH_SECONDS, "whole": True,
    }  # fmt: skip
    if question.policies:
        request["policies"] = list(question.policies)
    if question.deadline is not None:
        request["deadline"] = question.deadline
    if recorded:
        request["trace"] = {**recorded.request(), "period": question.period}
        request["replay"] = replays(question)
    answer = plan_operators(request)
    facts = {
        "schema": SCHEMA, "file": question.profile, "link": {"down": rate, **link}, "watts": power,
        "watts_source": power_source, "input_bytes": model.input_bytes, "trace": _facts_of(question.trace, recorded),
    }  # fmt: skip
    return {**facts, **answer, "notes": _notes(question, recorded, rate)}


def replays(question: Question) -> list[dict[str, Any]]:
    """Replays inferences over the trace: first the policies as planned once, then the adaptive ones."""
    guard = {"guard": True} | ({} if question.deadline is None else {"deadline": question.deadline})
    fixed = [name for name in question.policies or ("local", "offload", "stream", "cut") if name != "auto"]
    wanted: list[dict[str, Any]] = [{"policy": name, **({} if name == "local" else guard)} for name in fixed]
    if not question.policies or "auto" in question.policies:
        wanted += [{"policy": "auto", **guard}, {"policy": "auto", "forecast": "oracle"}]
    return wanted


def _facts_of(path: str, recorded: trace.Trace | None) -> dict[str, Any] | None:
    if recorded is None:
        return None
    return {"file": path, "seconds": recorded.seconds, "bin_seconds": recorded.bin_seconds, "gaps": recorded.gaps,
            "median": recorded.median()}  # fmt: skip


def _notes(question: Question, recorded: trace.Trace | None, rate: float) -> list[str]:
    notes = []
    if recorded and recorded.gaps:
        notes.append(f"{question.trace} lacks bins in {recorded.gaps} places: the remaining bins are joined")
    if recorded and not question.rate:
        notes.append(f"plans are for the trace's median, {rates.rate_text(rate)}")
    return notes
