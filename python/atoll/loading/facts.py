# SPDX-License-Identifier: Apache-2.0
"""The facts about each rank that the planner uses."""

from dataclasses import dataclass, replace
from typing import Any

from atoll import _C
from atoll.plan.batches import Rank
from atoll.plan.documents import document_of
from atoll.profiling.device import DeviceProfile

SHOWN = 8  # ranks in a message
EXACT_PASSES = 16  # beyond that many, a further pass is not told from its samples


@dataclass
class RankFacts:
    """One rank's limits and measurements, as exchanged between ranks."""

    device: str
    max_batch: int | None = None
    micro_batch: int | None = None
    watts: tuple[float, float] | None = None
    profile: DeviceProfile | None = None

    def held(self) -> int | None:
        """The number of samples that memory holds in one pass, as measured; None: unknown."""
        return self.profile.cap or None if self.profile else None

    def cap(self) -> int | None:
        """The most samples per step: the smaller of the user's limit and, if a step is one pass, memory's capacity."""
        return smaller(self.max_batch, self.held() if self.micro_batch is None else None)

    def largest_pass(self) -> int | None:
        """The maximum number of samples per forward pass if a share may be computed in several; None if it may not."""
        return None if self.micro_batch is None else smaller(self.micro_batch, self.held())

    def power(self) -> tuple[float, float] | None:
        """The watts while computing and while waiting: the user's, or the measured ones."""
        return self.watts or (self.profile.watts() if self.profile else None)

    def cost(self) -> _C.Cost:
        """Returns the cost in seconds by batch size. Without a measurement all ranks count as equally fast."""
        if self.profile is None:
            return _C.Cost.affine(0.0, 1.0)
        cost, _error = _C.fit_cost(self.profile.points())
        largest = self.largest_pass()
        return cost if largest is None else _of_passes(cost, largest)

    def as_planned(self, least: int, quantum: int) -> dict[str, Any]:
        """Returns the rank in the format of the planner's functions."""
        busy, idle = self.power() or (None, None)
        rank = Rank(self.cost(), self.device, least, self.cap(), quantum, busy, idle)
        if (profile := self.profile) is not None:
            rank = replace(rank, ops=profile.operations, memory_used=profile.memory_used, latency=profile.latency)
        known: dict[str, Any] = document_of(rank)
        return known


def require_room(facts: list[RankFacts], global_batch: int) -> None:
    """Raises ValueError if the ranks together cannot hold the global batch, and names what each of them holds."""
    caps = [rank.cap() for rank in facts]
    together = sum(cap for cap in caps if cap is not None)
    if None in caps or together >= global_batch:
        return
    told = [
        f"rank {place} ({rank.device}) {cap} ({'max_batch' if cap == rank.max_batch else 'memory'})"
        for place, (rank, cap) in enumerate(zip(facts, caps, strict=True))
    ]
    shown = ", ".join(told[:SHOWN]) + (", ..." if len(told) > SHOWN else "")
    raise ValueError(
        f"the ranks together hold {together} samples of a step, but the global batch is {global_batch}: {shown}; use "
        "micro_batch instead of max_batch, so that a rank computes its share in several passes, or lower global_batch"
    )


def _of_passes(cost: _C.Cost, largest: int) -> _C.Cost:
    """Returns the cost of a share that is computed in passes of at most `largest` samples, as even as possible."""

    def seconds(batch: int) -> float:
        passes = -(-batch // largest)
        size, larger = divmod(batch, passes)
        return larger * cost.seconds(size + 1) + (passes - larger) * cost.seconds(size)

    sizes = {1 << power for power in range(largest.bit_length())}
    for passes in range(1, EXACT_PASSES + 1):
        sizes |= {(passes - 1) * largest + 1, passes * largest}
    sizes.add(2 * EXACT_PASSES * largest)  # from here on every sample costs its part of a pass
    return _C.Cost.table([(float(size), seconds(size)) for size in sorted(sizes)])


def smaller(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
