# SPDX-License-Identifier: Apache-2.0
"""Divides an inference between a robot and a server (docs/plan-infer.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from atoll import _C
from atoll.plan import documents
from atoll.plan.documents import Document, document_of, record_of


@dataclass(frozen=True)
class LinkRates:
    """The link of a robot."""

    up: float
    """Bytes per second."""
    down: float | None = None
    """By default as many as `up`."""
    latency: float | None = None
    """Seconds of a message, whatever its size."""
    half_duplex: bool | None = None
    """Both directions share one medium."""


@dataclass(frozen=True)
class RobotPower:
    """Watts of the robot; what is None is published."""

    compute_watts: float | None = None
    idle_watts: float | None = None
    radio_watts: float | None = None


@dataclass(frozen=True)
class LinkTrace:
    """A recorded link, and when inputs arrive."""

    bin_seconds: float
    up: Sequence[float]
    """Bytes per second, by bin."""
    down: Sequence[float] | None = None
    begin: float | None = None
    length: float | None = None
    period: float | None = None
    """Seconds between inputs; by default the next one comes when the last is done."""
    apart: bool | None = None
    """Each inference has the link for itself."""
    past: Sequence[float] | None = None
    """Rates that forecasts learn from; the trace itself by default."""


@dataclass(frozen=True)
class Replay:
    """Inferences over a recorded link by one policy."""

    policy: str
    guard: bool | None = None
    """Local execution begins at the last moment that still meets the deadline."""
    deadline: float | None = None
    forecast: str | None = None
    """For auto: one of `forecasts()`, or oracle."""
    quantile: float | None = None
    sees_every_bin: bool | None = None
    rates: Sequence[float] | None = None
    """For other policies: rates for which plans are made; the last bin chooses among them."""
    each: bool | None = None
    """Return every inference."""


@dataclass(frozen=True)
class InferenceRequest:
    """A model, a link, and what to plan. What is None has the planner's default."""

    model: Document
    """As `read_model` returns it, or with the keys that docs/plan-infer.md lists."""
    link: LinkRates
    power: RobotPower | None = None
    policies: Sequence[str] | None = None
    """Some of `inference_policies()`; by default all except random."""
    deadline: float | None = None
    """For the policy energy."""
    chunks: int | None = None
    """For the policy stream: parts of the input."""
    seed: int | None = None
    literal: bool | None = None
    """intra-dp and hybrid-parallel as published."""
    evaluations: int | None = None
    search_seconds: float | None = None
    whole: bool | None = None
    """Return the shares and the events of each plan."""
    rates: Sequence[float] | None = None
    """Bytes per second at which all policies plan as well."""
    cuts: bool | None = None
    """Return the plan with everything up to each operator on the robot."""
    trace: LinkTrace | None = None
    replay: Sequence[Replay] | None = None
    """Over the trace."""


@dataclass(frozen=True)
class InferenceBound:
    """Seconds that no plan undercuts, and of what they consist."""

    seconds: float
    robot: float
    server: float
    up: float
    down: float


@dataclass(frozen=True)
class InferencePlan:
    """What one policy does."""

    policy: str
    seconds: float
    robot_busy: float
    """Seconds of computing."""
    server_busy: float
    link_busy: float
    up_bytes: float
    down_bytes: float
    joules: float
    """The robot's."""
    chunks: int
    rows_twice: float
    """Seconds for which the robot computes rows that the server computes too."""
    gap: float | None = None
    """The share of the seconds that lies above the bound."""
    shares: list[Any] | None = None
    """By operator the rows of the robot and of the server, each [begin, end]."""
    events: list[Any] | None = None
    """Each [lane, operator, begin, end]."""


@dataclass(frozen=True)
class InferencesAtRate:
    """The plans at another rate."""

    rate: float
    bound: float
    plans: list[InferencePlan]


@dataclass(frozen=True)
class Spread:
    """A quantity over all inferences of a replay."""

    mean: float
    std: float
    p50: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class Replayed:
    """What a replay gave: means over the inferences, and shares of them."""

    policy: str
    inferences: int
    seconds: Spread
    joules: Spread
    link_busy: Spread
    robot_busy: float
    server_busy: float
    up_bytes: float
    down_bytes: float
    watts: float
    local_answers: float
    guarded: float
    """Where the guard's local execution began."""
    forecast_error: float
    """The median of |predicted / actual - 1|."""
    plans: dict[str, float]
    missed: float | None = None
    """Above the deadline; None without one."""
    deadline: float | None = None
    forecast: str | None = None
    each: list[Any] | None = None
    """Each [begin, seconds, joules, plan, whether it is local]."""


@dataclass(frozen=True)
class InferencePlans:
    """The plans of all requested policies."""

    model: str
    operators: int
    robot_seconds: float
    server_seconds: float
    guard_deadline: float
    bound: InferenceBound
    plans: list[InferencePlan]
    names: list[str] | None = None
    """The operators', if the whole plans were requested."""
    sensitivity: list[InferencesAtRate] | None = None
    cuts: list[Any] | None = None
    """Each [operator, seconds, up bytes, and busy shares of robot, link, server]."""
    replay: list[Replayed] | None = None


def inference_policies() -> list[str]:
    return _C.operator_policies()


def forecasts() -> list[str]:
    return _C.forecasts()


def read_model(path: str | PathLike[str], input_bytes: int | None = None) -> Document:
    """Returns the model of a file that `atoll profile` wrote, or of a published profile. `input_bytes` overrides the
    size of the input on the link. Raises ValueError that names the file."""
    from atoll.infer.planning import models

    return models.read(fspath(path), input_bytes).request


def plan_inference(request: InferenceRequest) -> InferencePlans:
    """Returns what each policy would do with an inference. Raises ValueError that names what is wrong with the
    request."""
    return record_of(InferencePlans, documents.plan_operators(document_of(request)))
