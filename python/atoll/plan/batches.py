# SPDX-License-Identifier: Apache-2.0
"""Divides the samples of a step among unlike ranks (docs/plan-batches.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from atoll import _C
from atoll._C import Cost
from atoll.plan.documents import Document, document_of, record_of


@dataclass(frozen=True)
class Rank:
    """One rank. What is None has the planner's default."""

    cost: Cost
    name: str | None = None
    least: int | None = None
    """The minimum number of samples, 1 by default; with 0 the rank may stay empty."""
    most: int | None = None
    """The maximum, such as the number that fits into its memory."""
    quantum: int | None = None
    """The batch is a multiple of this."""
    busy_watts: float | None = None
    idle_watts: float | None = None
    ops: float | None = None
    """Operations per second; like `memory_used` and the latencies a metric of BalanceNet."""
    memory_used: float | None = None
    latency: float | None = None
    latencies: Sequence[float] | None = None


@dataclass(frozen=True)
class BatchRequest:
    """A global batch to divide among ranks by a policy. What is None has the planner's default."""

    ranks: Sequence[Rank | Document]
    """Ranks, or mappings with the keys of a file for `atoll plan batches --ranks`."""
    batch: int
    """The samples of a step."""
    policy: str | None = None
    """One of `batch_policies()`; minmax by default."""
    form: str | None = None
    """The form of a BalanceNet policy: normalised (default) or literal."""
    shares: Sequence[float] | None = None
    """The shares of the policy fixed."""
    seed: int | None = None
    epoch: int | None = None
    probe: int | None = None
    """The batch of KAITIAN's scores."""
    rounds: int | None = None
    """For kaitian-iterative."""
    slowdown: float | None = None
    """For energy: how much longer than the shortest a step may be, as a share."""


@dataclass(frozen=True)
class BatchPlan:
    """A division of the batch, with its cost on the ranks' curves."""

    id: str
    policy: str
    names: list[str]
    batches: list[int]
    """Samples, by rank."""
    total: int
    seconds: list[float]
    """By rank."""
    step: float
    """Seconds of the step: those of the slowest rank."""
    idle: list[float]
    """The share of the step in which each rank waits."""
    mean_idle: float
    bound: float
    """Seconds of the shortest step that any division of the batch could take."""
    distance: float
    """The step over the bound."""
    exact: bool
    """Whether no other division is better by the policy's own measure."""
    notes: list[str]
    form: str | None = None
    """For a policy of BalanceNet."""
    joules_per_sample: float | None = None


@dataclass(frozen=True)
class LeftOutPolicy:
    """A policy that lacks an input, and which."""

    policy: str
    reason: str


@dataclass(frozen=True)
class BalanceNetTerms:
    """What BalanceNet computes for a rank."""

    name: str
    query: float
    value: int
    key: float = field(metadata={"key": "K"})
    memory: float = field(metadata={"key": "MW"})
    latencies: list[float] = field(metadata={"key": "NL"})
    network: list[float] = field(metadata={"key": "NCW"})


@dataclass(frozen=True)
class BatchComparison:
    """The plans of all policies."""

    plans: list[BatchPlan]
    left_out: list[LeftOutPolicy]
    balancenet_eq5: list[BalanceNetTerms] = field(metadata={"key": "balancenet-eq5"})
    balancenet_alg1: list[BalanceNetTerms] = field(metadata={"key": "balancenet-alg1"})


@dataclass(frozen=True)
class Network:
    """A model of the time that communication takes, for `advise_membership`."""

    gradient_bytes: float
    islands: Sequence[int]
    """The island of each rank, from 0."""
    inside_bytes_per_second: Sequence[float]
    """One for each island."""
    bridge_bytes_per_second: float | None = None
    bridge_latency: float | None = None
    overlap: float | None = None
    """The share of it that computing hides."""


@dataclass(frozen=True)
class MembershipAdvice:
    """Which ranks should take part."""

    best: list[int]
    best_step: float
    exact: bool
    advice: list[str]
    all_step: float | None = None
    """With all ranks; None if the batch does not fit all of them."""
    without: list[float | None] | None = None
    """The step without each rank; None where the batch does not fit the others."""


@dataclass(frozen=True)
class PlanChange:
    """The batches from a step on."""

    step: int
    batches: list[int]


@dataclass(frozen=True)
class AdapterOptions:
    """When a PlanAdapter adopts a new plan. What is None has the planner's default."""

    gain: float | None = None
    """The share by which a step must get shorter."""
    windows: int | None = None
    """In how many windows in a row."""
    switch_seconds: float | None = None
    """What a change costs."""
    hysteresis: bool | None = None
    """False: every new division is adopted, each `interval` windows."""
    interval: int | None = None
    changes_per_epoch: int | None = None
    frozen: bool | None = None
    replay: Sequence[PlanChange] | None = None
    """The `history` of an earlier run, to be followed again."""


@dataclass(frozen=True)
class Observation:
    """What one rank measured in a window."""

    batch: int
    """Its samples in a step; 0: it measured nothing."""
    seconds: float | None = None
    """The median of its steps."""
    ops: float | None = None
    memory_used: float | None = None
    latency: float | None = None
    latencies: Sequence[float] | None = None


@dataclass(frozen=True)
class Window:
    """The measurements of some steps, gathered from all ranks."""

    step: int
    """The next step."""
    ranks: Sequence[Observation]
    remaining: int | None = None
    """Steps until the training ends."""
    epoch: int | None = None


@dataclass(frozen=True)
class Decision:
    """What a PlanAdapter made of a window."""

    changed: bool
    version: int
    drift: list[bool]
    """Whether the speed of each rank has changed."""
    factors: list[float]
    """How much slower each rank is than its cost says."""
    gain: float
    reason: str


class PlanAdapter:
    """Keeps a plan up to date from what the ranks measure. Ranks with the same request and the same windows have the
    same plan."""

    def __init__(self, request: BatchRequest, options: AdapterOptions | None = None) -> None:
        self._adapter = _C.PlanAdapter(document_of(request), document_of(options or AdapterOptions()))

    def observe(self, window: Window) -> Decision:
        return record_of(Decision, self._adapter.observe(document_of(window)))

    @property
    def plan(self) -> BatchPlan:
        return record_of(BatchPlan, self._adapter.plan)

    @property
    def history(self) -> list[PlanChange]:
        return [record_of(PlanChange, each) for each in self._adapter.history]

    def freeze(self, frozen: bool = True) -> None:
        self._adapter.freeze(frozen)

    def state_dict(self) -> dict[str, Any]:
        return self._adapter.state_dict()

    def load_state_dict(self, state: Document) -> None:
        self._adapter.load_state_dict(state)


def batch_policies() -> list[str]:
    return _C.policies()


def plan_batches(request: BatchRequest) -> BatchPlan:
    """Returns the plan of the request's policy. Raises ValueError that names what is wrong with the request."""
    return record_of(BatchPlan, _C.plan_batches(document_of(request)))


def compare_policies(request: BatchRequest) -> BatchComparison:
    """Returns the plans of all policies, whatever the request's policy."""
    return record_of(BatchComparison, _C.explain_batches(document_of(request)))


def evaluate_batches(request: BatchRequest, batches: Sequence[int]) -> BatchPlan:
    """Returns what these batches cost, one for each rank."""
    return record_of(BatchPlan, _C.evaluate_batches(document_of(request), batches))


def advise_membership(
    ranks: Sequence[Rank | Document], batch: int, *, network: Network | None = None,
    seconds: Mapping[tuple[int, ...], float] | None = None,
) -> MembershipAdvice:  # fmt: skip
    """Returns which ranks should take part. The time of communication is that of `network`, or `seconds` has it for
    the sets of ranks to compare; without both it is not counted."""
    request: dict[str, Any] = {"ranks": document_of(ranks), "batch": batch}
    if network is not None:
        request["network"] = document_of(network)
    if seconds is not None:
        request["table"] = [{"ranks": members, "seconds": each} for members, each in seconds.items()]
    return record_of(MembershipAdvice, _C.advise_membership(request))


def fit_cost(points: Sequence[tuple[float, float]]) -> tuple[Cost, float]:
    """Returns the cost whose shape fits measured pairs of batch and seconds best, and the root mean square of its
    relative errors."""
    return _C.fit_cost(points)


def permutation(size: int, seed: int, epoch: int) -> torch.Tensor:
    """Returns the order of samples in an epoch: the same int64 tensor on every platform."""
    return _C.permutation(size, seed, epoch)


def draw(weights: torch.Tensor, count: int, seed: int, epoch: int) -> torch.Tensor:
    """Returns `count` indices drawn with replacement in proportion to the weights."""
    return _C.draw(weights, count, seed, epoch)


def index_hash(indices: torch.Tensor) -> int:
    """Returns 64 bits by which ranks compare the order of their samples."""
    return _C.index_hash(indices)
