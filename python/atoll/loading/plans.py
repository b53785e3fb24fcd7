# SPDX-License-Identifier: Apache-2.0
"""Plans and from which step on each holds."""

import bisect
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plan:
    """Each rank's share of a whole step."""

    version: int
    first_step: int  # counted from the beginning of the training
    batches: tuple[int, ...]  # by rank
    seconds: float = 0.0  # of a step, as predicted
    bound: float = 0.0  # the shortest that any division has
    factors: tuple[float, ...] = ()  # by rank: how many times as slow as its profile, when the plan was made
    id: str = ""  # equal for equal batches of the same policy

    @property
    def total(self) -> int:
        return sum(self.batches)

    def told(self) -> dict[str, Any]:
        """What it is known by, as JSON can say it."""
        return {"version": self.version, "first_step": self.first_step, "id": self.id, "factors": list(self.factors)}


class PlanBook:
    """All plans of a training, by the step from which on they hold."""

    def __init__(self, first: Plan) -> None:
        self.plans = [first]

    def at(self, step: int) -> Plan:
        """The plan that holds in a step; the first one for those before it."""
        place = bisect.bisect_right(self.plans, step, key=lambda plan: plan.first_step)
        return self.plans[max(0, place - 1)]

    def add(self, plan: Plan) -> None:
        """A plan that holds later than all others: what was handed out by an earlier one stays valid."""
        if plan.first_step <= self.plans[-1].first_step:
            raise ValueError(f"a plan for step {plan.first_step} after one for step {self.plans[-1].first_step}")
        self.plans.append(plan)
