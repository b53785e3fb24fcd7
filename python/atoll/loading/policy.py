# SPDX-License-Identifier: Apache-2.0
"""Plans, the steps from which they apply, and the policies that make them from facts about ranks."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll import _C
from atoll.loading.arguments import check_replay, check_shares
from atoll.loading.facts import RankFacts
from atoll.loading.settings import Settings
from atoll.plan.documents import document_of

NEED_NO_COSTS = ("equal", "random", "fixed")


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


class Policy:
    """One policy with its arguments. Raises ValueError for an unknown policy, and for what no policy can do."""

    def __init__(
        self, name: str, global_batch: int, ranks: int, shares: Sequence[float] | None, settings: Settings, *,
        seed: int, is_weighted: bool,
    ) -> None:  # fmt: skip
        if name not in _C.policies():
            raise ValueError(f'unknown policy "{name}": choose from {", ".join(_C.policies())}')
        if global_batch < ranks * settings.least:
            raise ValueError(
                f"a global batch of {global_batch} samples cannot give {settings.least} to each of {ranks} ranks: "
                "raise global_batch, or Settings(least=0)"
            )
        if (name == "fixed") != (shares is not None):
            raise ValueError('shares and policy="fixed" belong together: pass both, or neither')
        if shares is not None:
            check_shares(shares, ranks)
        if settings.changes_per_epoch is not None and settings.changes_per_epoch < 1:
            raise ValueError(
                f"Settings(changes_per_epoch={settings.changes_per_epoch}): give at least 1, or None for any number; "
                "update_interval=0 keeps the first plan"
            )
        if settings.replay is not None:
            check_replay(settings.replay, global_batch, ranks, settings.form)
        if not is_weighted and (name != "equal" or settings.replay is not None):
            made_by = f'policy "{name}"' if name != "equal" else "Settings(replay=...)"
            raise ValueError(
                f"{made_by} makes uneven shares, and unweighted gradients would be wrong: pass "
                'model=DistributedDataParallel(net), or policy="equal" and no replay'
            )
        self.name, self.global_batch, self._settings = name, global_batch, settings
        self.needs_costs = name not in NEED_NO_COSTS
        self._request: dict[str, Any] = {"policy": name, "seed": seed, "form": settings.form}
        if shares is not None:
            self._request["shares"] = [float(share) for share in shares]

    def request(self, facts: list[RankFacts]) -> dict[str, Any]:
        """Returns the planner's request for a whole step. Raises ValueError if a rank lacks a fact for it."""
        unknown = [rank for rank, of in enumerate(facts) if of.power() is None]
        if self.name == "energy" and unknown:
            raise ValueError(
                f'policy "energy" needs the power of every rank, but nothing measures that of rank {unknown[0]} '
                f"({facts[unknown[0]].device}): pass Settings(watts=(computing, waiting)) there"
            )
        return {**self._request, "ranks": self._ranks(facts), "batch": self.global_batch}

    def tail(self, facts: list[RankFacts], factors: Sequence[float], samples: int) -> list[int]:
        """Returns the shares of an epoch's last step, which may be 0, on ranks `factors` times as slow as measured."""
        ranks = [{**rank, "least": 0, "quantum": 1} for rank in self._ranks(facts)]
        for rank, cost, factor in zip(ranks, [rank.cost() for rank in facts], factors, strict=True):
            rank["cost"] = document_of(cost.scaled(factor))
        request = {**self._request, "form": "normalised", "ranks": ranks, "batch": samples}
        batches: list[int] = _C.plan_batches(request)["batches"]
        return batches

    def _ranks(self, facts: list[RankFacts]) -> list[dict[str, Any]]:
        return [rank.as_planned(self._settings.least, self._settings.quantum) for rank in facts]
