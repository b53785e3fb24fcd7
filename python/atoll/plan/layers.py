# SPDX-License-Identifier: Apache-2.0
"""Places the layers of a model on unlike devices, as a pipeline (docs/plan-layers.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atoll.plan import documents
from atoll.plan.documents import Document, document_of, record_of


@dataclass(frozen=True)
class Item:
    """A layer, or `count` equal ones. Bytes are 0 by default."""

    name: str
    times: Mapping[str, Sequence[Sequence[float]]]
    """By kind of device: lists of samples in a micro-batch, forward seconds, backward seconds, and, if known, seconds
    of adding gradients to existing ones."""
    count: int | None = None
    """With it the items are name.0, name.1, ..."""
    kind: str | None = None
    """embedding, block (default), norm, head or other."""
    weight_bytes: float | None = None
    gradient_bytes: float | None = None
    optimiser_bytes: float | None = None
    kept_bytes: float | None = None
    """Activations kept for the backward pass, for each sample."""
    recompute_bytes: float | None = None
    """The same with recomputation; None: the item is never recomputed."""
    output_bytes: float | None = None
    """What goes to the next item, for each sample."""


@dataclass(frozen=True)
class Devices:
    """A class of equal devices in one place."""

    name: str
    kind: str | None = None
    """The kind in an item's `times`; by default the name."""
    count: int | None = None
    memory_bytes: float | None = None
    """None: no limit."""
    island: str | None = None
    ranks: Sequence[int] | None = None
    """The job's ranks; by default numbered through all classes."""


@dataclass(frozen=True)
class Link:
    """What a transfer takes between two classes or islands, or inside one: latency + bytes * seconds_per_byte."""

    between: tuple[str, str]
    latency: float | None = None
    seconds_per_byte: float | None = None


@dataclass(frozen=True)
class Tie:
    """Items that share a weight."""

    items: Sequence[str]
    weight_bytes: float | None = None
    gradient_bytes: float | None = None
    optimiser_bytes: float | None = None
    apart: bool | None = None
    """False: they must be on one stage."""


@dataclass(frozen=True)
class LayerRequest:
    """A model, devices and the step to plan. What is None has the planner's default."""

    items: Sequence[Item]
    """In the order in which data passes through them."""
    devices: Sequence[Devices]
    batch: int
    """Samples of a step, all pipelines together."""
    links: Sequence[Link] | None = None
    default_link: Mapping[str, float] | None = None
    """`latency` and `seconds_per_byte` of pairs that `links` does not list; None: they take no time."""
    ties: Sequence[Tie] | None = None
    micro_batch: int | Sequence[int] | None = None
    """Samples of a micro-batch, or sizes to choose from."""
    replicas: int | Sequence[int] | None = None
    """Pipelines side by side, or numbers to choose from."""
    schedule: str | None = None
    """1f1b (default), gpipe, interleaved or zero-bubble."""
    chunks: int | None = None
    """For interleaved: ranges on each device."""
    transfers: str | None = None
    """exposed (default) or overlapped."""
    gradients: str | None = None
    recompute: str | None = None
    """auto (default), never or always."""
    leave_out: bool | None = None
    """Whether devices may stay without a stage."""
    margin: float | None = None
    """The share of each memory that stays free."""
    most_placements: int | None = None


@dataclass(frozen=True)
class StagePlan:
    """The items of one device, and their times for one micro-batch."""

    items: tuple[int, int]
    """The half-open range of item numbers."""
    names: list[str]
    device: str
    """The class."""
    number: int
    """The number of the device within the class."""
    rank: int
    island: str
    recompute: bool
    in_flight: float
    forward: float
    backward: float
    accumulate: float
    send: float
    seconds: float
    memory_bytes: float
    fits: bool
    memory_cap_bytes: float | None = None
    missing_bytes: float | None = None
    """Only of `LayerPlan.tightest`."""


@dataclass(frozen=True)
class ChunkedPlan:
    """An interleaved pipeline's stages, one for each chunk in order."""

    seconds: float
    stages: list[StagePlan]


@dataclass(frozen=True)
class PipelinePlan:
    """One replica of the model."""

    micro_batches: int
    seconds: float
    period: float
    """The longest stage's."""
    fill: float
    """The sum of all stages."""
    ties: float
    gradients: float
    stages: list[StagePlan]
    chunked: ChunkedPlan | None = None


@dataclass(frozen=True)
class Proof:
    """What is exact about a plan."""

    stages: bool
    search: bool
    examined: int
    pruned: int


@dataclass(frozen=True)
class OneKindPlan:
    """The best plan on devices of one kind."""

    kind: str
    devices: int
    seconds: float
    wins: bool
    """Whether it is faster than the plan on all devices."""
    micro_batch: int
    pipelines: list[PipelinePlan]


@dataclass(frozen=True)
class UnusedDevice:
    """A device without a stage."""

    device: str
    number: int
    rank: int


@dataclass(frozen=True)
class LayerChange:
    """A change with which a plan fits the memories."""

    change: str
    """stages, recompute, schedule, micro_batch, replicas, leave_out or memory."""
    text: str
    seconds: float
    micro_batch: int
    pipelines: list[PipelinePlan]
    missing_bytes: float | None = None
    """For memory: one for each device."""


@dataclass(frozen=True)
class LayerPlan:
    """The fastest plan, or a given one with its times. Where no plan fits the memories, `feasible` is false, there are
    no pipelines, and `reason`, `tightest` and `nearest` say what would fit; a given plan that does not fit has both."""

    feasible: bool
    bound: float
    """Seconds; no plan is shorter."""
    seconds: float | None = None
    """Predicted for a step."""
    samples_per_second: float | None = None
    distance: float | None = None
    """The seconds over the bound."""
    micro_batch: int | None = None
    micro_batches: int | None = None
    replicas: int | None = None
    schedule: str | None = None
    chunks: int | None = None
    pipelines: list[PipelinePlan] = field(default_factory=list)
    exact: Proof | None = None
    """None for a plan that was given."""
    homogeneous: OneKindPlan | None = None
    left_out: list[UnusedDevice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    formats: dict[str, Any] = field(default_factory=dict)
    """The plan as settings of megatron, flagscale and torchtitan."""
    reason: str | None = None
    tightest: StagePlan | None = None
    nearest: list[LayerChange] = field(default_factory=list)


def plan_layers(request: LayerRequest | Document) -> LayerPlan:
    """Returns the fastest plan of a request, or of a mapping with its keys, such as the content of a profile. Raises
    ValueError that names what is wrong with the request."""
    return record_of(LayerPlan, documents.plan_layers(document_of(request)))


def price_layers(request: LayerRequest | Document, plan: LayerPlan | Document) -> LayerPlan:
    """Returns a given plan with its times. Of a mapping `micro_batch`, and of `pipelines` the `micro_batches` and the
    `items`, `device` and `recompute` of each of the `stages` are read."""
    return record_of(LayerPlan, documents.price_layers({**document_of(request), "plan": document_of(plan)}))
