# SPDX-License-Identifier: Apache-2.0
"""Plans, and the steps from which they apply."""

import bisect
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plan:
    """Each rank's share of a whole step."""

    version: int
    first_step: int  # counted from the start of the training
    batches: tuple[int, ...]  # by rank
    seconds: float = 0.0  # of a step, as predicted
    bound: float = 0.0  # the lower bound of any division
    factors: tuple[float, ...] = ()  # by rank: the slowdown against its profile when the plan was made
    id: str = ""  # equal for equal batches of the same policy

    @property
    def total(self) -> int:
        return sum(self.batches)

    def told(self) -> dict[str, Any]:
        """Returns the identity of the plan as JSON values."""
        return {"version": self.version, "first_step": self.first_step, "id": self.id, "factors": list(self.factors)}


class PlanBook:
    """All plans of a training, by the step from which they apply."""

    def __init__(self, first: Plan) -> None:
        self.plans = [first]
        """Each applies later than those before it: steps handed out by an earlier plan stay valid."""

    def at(self, step: int) -> Plan:
        """Returns the plan that applies to a step; the first plan for earlier steps."""
        place = bisect.bisect_right(self.plans, step, key=lambda plan: plan.first_step)
        return self.plans[max(0, place - 1)]
