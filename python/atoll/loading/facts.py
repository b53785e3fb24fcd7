# SPDX-License-Identifier: Apache-2.0
"""What the planner knows of each rank."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from atoll import _C
from atoll.profiling.device import DeviceProfile


@dataclass
class RankFacts:
    """One rank's limits and measurements, as it tells them to the others."""

    device: str
    max_batch: int | None = None
    micro_batch: int | None = None
    watts: tuple[float, float] | None = None
    profile: dict[str, Any] | None = None  # DeviceProfile.to_json()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(text: dict[str, Any]) -> "RankFacts":
        return RankFacts(**text)

    def measured(self) -> DeviceProfile | None:
        return None if self.profile is None else DeviceProfile.from_json(self.profile)

    def cap(self) -> int | None:
        """The user's limit, or what the memory was measured to hold; the smaller of both."""
        profile = self.measured()
        limits = [limit for limit in (self.max_batch, profile.cap if profile else 0) if limit]
        return min(limits) if limits else None

    def power(self) -> tuple[float, float] | None:
        """Watts while computing and while waiting: the user's, or those that were measured."""
        profile = self.measured()
        if self.watts is not None or profile is None or not profile.idle_watts:
            return self.watts
        return profile.busy_watts, profile.idle_watts

    def cost(self) -> _C.Cost:
        """Seconds by batch. Without a measurement all ranks count as equally fast."""
        profile = self.measured()
        if profile is None:
            return _C.Cost.affine(0.0, 1.0)
        cost, _error = _C.fit_cost(profile.points())
        if self.micro_batch is None:
            return cost
        launch = max(0.0, 2 * cost.seconds(1) - cost.seconds(2)) if self.micro_batch > 1 else 0.0
        per_sample = max(0.0, (cost.seconds(self.micro_batch) - launch) / self.micro_batch)
        return _C.Cost.staircase(self.micro_batch, launch, per_sample)

    def as_planned(self, least: int, quantum: int) -> dict[str, Any]:
        """The rank as the planner's functions take it."""
        known: dict[str, Any] = {
            "name": self.device,
            "cost": json.loads(self.cost().to_json()),
            "least": least,
            "quantum": quantum,
        }
        if (cap := self.cap()) is not None:
            known["most"] = cap
        profile = self.measured()
        if (power := self.power()) is not None:
            known["busy_watts"], known["idle_watts"] = power
        if profile is not None:
            known |= {"ops": profile.operations, "memory_used": profile.memory_used, "latency": profile.latency}
        return known
