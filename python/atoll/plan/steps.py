# SPDX-License-Identifier: Apache-2.0
"""Simulates training steps (docs/simulate.md)."""

from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from atoll.plan import documents, from_layers
from atoll.plan.documents import Document, document_of, record_of
from atoll.plan.layers import LayerPlan, LayerRequest


@dataclass(frozen=True)
class RankTimes:
    """What one rank does: `computes`, `optimises`, `transfers`, `reduces` and `idle` add up to the simulated time."""

    name: str
    island: str
    host: str
    pipeline: int
    computes: float
    optimises: float
    transfers: float
    """Seconds in which it waits for a transfer that is under way."""
    reduces: float
    idle: float
    communicates: float
    """Seconds in which a transfer from or to it is under way."""
    sent_bytes: float
    peak_bytes: float
    device_class: str = field(metadata={"key": "class"})
    memory_bytes: float | None = None
    fits: bool | None = None


@dataclass(frozen=True)
class StageUse:
    """A stage's rank, and the maximum number of micro-batches whose activations it keeps."""

    pipeline: int
    stage: int
    rank: int
    in_flight: int


@dataclass(frozen=True)
class PathPart:
    """A part of the critical path."""

    what: str
    """forward, backward, weight, optimiser, transfer or reduction."""
    where: str
    seconds: float
    count: int


@dataclass(frozen=True)
class RailUse:
    """The busiest rail of a kind and direction."""

    name: str
    where: str
    direction: str
    bytes: float
    share: float


@dataclass(frozen=True)
class Event:
    """An action, transfer or reduction; -1 where a field does not apply."""

    what: str
    rank: int
    peer: int
    pipeline: int
    stage: int
    micro_batch: int
    step: int
    begin: float
    end: float
    bytes: float


@dataclass(frozen=True)
class Simulation:
    """What happens in a step."""

    seconds: float
    """From the first action to the end of the last."""
    step_seconds: float
    bound: float
    """No order of the same actions takes less time for a step."""
    bubble: float
    """The share of all ranks' time in which they wait for transfers or are idle."""
    events: int
    """The number of simulated events."""
    ranks: list[RankTimes]
    stages: list[StageUse]
    path: list[PathPart]
    rails: list[RailUse]
    timeline: list[Event] | None = None
    """Only if the plan has `"timeline": true`."""


def simulate(plan: Document) -> Simulation:
    """Simulates a plan of a step, with the keys that docs/simulate.md lists. Raises ValueError that names what is wrong
    with the plan."""
    return record_of(Simulation, documents.simulate(plan))


def step_of_layers(request: LayerRequest | Document, plan: LayerPlan | Document) -> Document:
    """Returns the step of a plan of layers, for `simulate`. Raises ValueError for a plan that is not feasible."""
    return from_layers.plan_of(document_of(request), document_of(plan))


def write_trace(plan: Document, path: str | PathLike[str]) -> None:
    """Writes the simulation as a Chrome trace, for Perfetto."""
    Path(path).write_text(documents.trace_text(plan), encoding="utf-8")


def schedule_actions(schedule: str, ranks: int, stages: int, micro_batches: int) -> list[list[str]]:
    """Returns the order of actions on each rank of a pipeline, such as "0F3": stage 0, forward of micro-batch 3."""
    return documents.actions(schedule, ranks, stages, micro_batches)
