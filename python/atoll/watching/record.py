# SPDX-License-Identifier: Apache-2.0
"""Rank 0's records of windows of the training, and of events."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

NEW_PLAN, DRIFT, LEAVE_OUT, REPLICA_DRIFT = "new plan", "drift", "leave out", "replica drift"  # kinds of events
MAX_NAMED = 8


@dataclass(frozen=True)
class WindowRecord:
    """A window: the steps since the last record. Lists are by rank; times are seconds of one step, medians over the
    window unless stated otherwise."""

    step: int  # completed so far, from the start of the training
    plan: int  # version of the current plan
    plan_id: str  # equal for equal plans
    devices: tuple[str, ...]
    batches: tuple[int, ...]
    compute_seconds: tuple[float, ...]  # up to the last gradient, without waits for others
    input_seconds: tuple[float, ...]  # waits for the data loader
    wall_seconds: float  # the mean from step to step, on rank 0's clock
    predicted_seconds: float | None = None  # of the plan; None: unknown, as for all below
    bound_seconds: float | None = None  # the lower bound of any division
    speed_factors: tuple[float, ...] = ()  # gamma: measured over profiled time; above 1 is slower
    replica_drift: float | None = None  # the largest difference between ranks, over the largest parameter
    epoch: int | None = None
    exposed_seconds: tuple[float, ...] = ()  # from a rank's last gradient to the last reduced one; (): not measured
    inside_seconds: tuple[float, ...] = ()  # in collectives within islands; this and the next two may pass while
    bridge_seconds: tuple[float, ...] = ()  # the rank computes: waits in collectives for other islands,
    staging_seconds: tuple[float, ...] = ()  # and copies between the device and the host
    links: tuple[tuple[int, int, float], ...] = ()  # sender, receiver, and bytes of a step in collectives
    noted: Mapping[str, float] = field(default_factory=dict)  # by loader.note

    @property
    def samples(self) -> int:
        """The samples of one step."""
        return sum(self.batches)

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.wall_seconds if self.wall_seconds > 0 else 0.0

    @property
    def waiting(self) -> tuple[float, ...]:
        """The share of a step, by rank, that is spent waiting for the rank that takes longest to load and compute."""
        busy = [loads + computes for loads, computes in zip(self.input_seconds, self.compute_seconds, strict=True)]
        longest = max(busy, default=0.0)
        step = max(self.wall_seconds, longest)
        return tuple((longest - seconds) / step if step > 0 else 0.0 for seconds in busy)

    @property
    def distance(self) -> float | None:
        """The time of a step as a multiple of the bound."""
        return self.wall_seconds / self.bound_seconds if self.bound_seconds else None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields, including derived ones."""
        derived = {"samples_per_second": self.samples_per_second, "waiting": self.waiting, "distance": self.distance}
        return asdict(self) | derived

    @staticmethod
    def from_json(value: dict[str, Any]) -> "WindowRecord":
        """Ignores derived and unknown keys."""
        return WindowRecord(**_known(value, WindowRecord))


@dataclass(frozen=True)
class PlanEvent:
    """An event that a user should know about."""

    step: int
    kind: str
    text: str
    rank: int | None = None  # the rank that it concerns
    value: float | None = None  # the kind's number
    plan: int | None = None  # version of the new plan
    batches: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()  # the ranks that it concerns, if there may be several
    seconds: float | None = None  # of a step

    @staticmethod
    def new_plan(step: int, plan: int, batches: tuple[int, ...], reason: str) -> "PlanEvent":
        """Makes the event of a new plan, which applies from `step` on."""
        text = f"new plan {plan}: {numbers(batches)}: {reason}"
        return PlanEvent(step, NEW_PLAN, text, plan=plan, batches=batches)

    @staticmethod
    def drift(step: int, rank: int, device: str, factor: float) -> "PlanEvent":
        """Makes the event of a drift. `factor`: measured over predicted seconds."""
        text = f"rank {rank} ({device}) takes {factor:.2f} times its predicted time"
        return PlanEvent(step, DRIFT, text, rank, factor)

    @staticmethod
    def leave_out(
        step: int, ranks: tuple[int, ...], devices: Sequence[str], gain: float, seconds: float
    ) -> "PlanEvent":  # fmt: skip
        """Makes the advice to leave ranks out. `seconds`: how much shorter a step would be without these ranks; `gain`:
        the same as a share of its time. No ranks: earlier advice no longer applies. `devices`: of all ranks."""
        text = "all ranks are useful again: no rank should be left out any more"
        if ranks:
            who = ", ".join(f"{rank} ({devices[rank]})" for rank in ranks[:MAX_NAMED])
            who += f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
            text = (
                f"leave rank{'s' if len(ranks) > 1 else ''} {who} out: a step would take {1e3 * seconds:.3g} ms "
                f"({100 * gain:.0f} %) less; start the training without {'them' if len(ranks) > 1 else 'it'}"
            )
        rank = ranks[0] if len(ranks) == 1 else None
        return PlanEvent(step, LEAVE_OUT, text, rank, gain, ranks=ranks, seconds=seconds)

    @staticmethod
    def replica_drift(step: int, difference: float) -> "PlanEvent":
        """Makes the event of a replica drift. `difference`: the largest between ranks in any parameter, over the
        largest parameter."""
        text = f"parameters differ by up to {difference:.3g} of the largest between ranks"
        return PlanEvent(step, REPLICA_DRIFT, text, value=difference)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> "PlanEvent":
        return PlanEvent(**_known(value, PlanEvent))


def numbers(values: tuple[int, ...], most: int = MAX_NAMED) -> str:
    """Returns the first few values as text."""
    return " ".join(map(str, values[:most])) + (" ..." if len(values) > most else "")


def _held(value: Any) -> Any:
    return tuple(_held(each) for each in value) if isinstance(value, list) else value


def _known(value: dict[str, Any], kind: type) -> dict[str, Any]:
    """Returns the fields of `kind`, in its types."""
    names = [field.name for field in fields(kind) if field.name in value]
    return {name: _held(value[name]) for name in names}
