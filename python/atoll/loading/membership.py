# SPDX-License-Identifier: Apache-2.0
"""Estimates from measured steps whether a training would be faster with fewer ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll import _C
from atoll.loading.policy import Plan
from atoll.loading.settings import Settings
from atoll.loading.timing import Seen
from atoll.plan.batches import advise_membership
from atoll.plan.documents import cost_of, document_of

PAUSE = 10  # windows until a judged plan is judged again, because links change too
SIMILAR = 2 / 3  # of the savings of the best set
Ranks = tuple[int, ...]  # ascending


@dataclass(frozen=True)
class Advice:
    """The ranks to leave out, and how much shorter a step would be without them."""

    left_out: Ranks = ()
    gain: float = 0.0  # as a share of a step's time
    seconds: float = 0.0


class Membership:
    """Compares the best division among all ranks with the best among fewer.

    The predicted time of a set of ranks is the optimum over its batches, with each rank as slow as measured (loading
    and computing, in the shape of its measured curve), plus the communication that computing does not hide. That is
    nothing for a single rank, the measured time inside islands for ranks of one island, and the present value for all
    other sets. The rest of a step, such as the optimizer, is unchanged.

    Equal numbers give equal advice on all ranks."""

    def __init__(
        self, ranks: list[dict[str, Any]], costs: Sequence[_C.Cost], islands: list[list[int]], settings: Settings
    ) -> None:  # fmt: skip
        """`ranks`: in the planner's format; `costs`: as measured before the training; `islands`: empty if unknown."""
        self._ranks, self._costs, self._islands = ranks, costs, [tuple(island) for island in islands]
        self._gain, self._patience = settings.gain, settings.patience
        self._told: Ranks = ()
        self._last: Ranks = ()
        self._in_a_row = self._pause = 0
        self._version: int | None = None

    def observe(self, everyone: Sequence[Seen], factors: Sequence[float], plan: Plan) -> Advice | None:
        """Observes a window of steps by `plan`. Returns advice that differs from the previous advice once as many
        windows in a row agree as a new plan needs: in the first windows, after each change of plan, and periodically.
        `factors`: how slow ranks without samples are."""
        if plan.version != self._version:
            self._version, self._in_a_row, self._pause = plan.version, 0, 0
        if self._pause:
            self._pause -= 1
            return None
        advice = self._judged(everyone, factors, plan)
        if advice is None:
            self._in_a_row = 0
            return None
        self._in_a_row = self._in_a_row + 1 if advice.left_out == self._last else 1
        self._last = advice.left_out
        if self._in_a_row < self._patience:
            return None
        self._in_a_row, self._pause = 0, PAUSE
        if advice.left_out == self._told:
            return None
        self._told = advice.left_out
        return advice

    def _judged(self, everyone: Sequence[Seen], factors: Sequence[float], plan: Plan) -> Advice | None:
        """Returns the advice of this window; None if a measurement is missing. Earlier advice, given or found in the
        last window, is only replaced by much better advice, because equal ranks are equally good alone. Given advice
        stands while it has any gain."""
        exposed = min(seen.exposed for seen in everyone)  # of the rank that others wait for
        if exposed < 0 or any(seen.batch > 0 and seen.compute <= 0 for seen in everyone):
            return None
        ranks = self._as_measured(everyone, factors)
        costs = [cost_of(rank["cost"]) for rank in ranks]
        sets = _candidates(costs, self._islands, plan.total)
        found = self._found(ranks, everyone, sets, exposed, plan.total)
        if found is None:
            return None
        step = max(max(seen.wall for seen in everyone),
                   max(seen.input + seen.compute for seen in everyone) + exposed)  # fmt: skip
        best, saved = found
        for known in (self._told, self._last):
            if not known or best == known:
                continue
            held = self._found(ranks, everyone, [_without(known, len(ranks))], exposed, plan.total)
            if held is not None and held[0] and held[1] >= SIMILAR * saved:
                best, saved = held
                break
        enough = 0 if best == self._told else self._gain * step
        return Advice(best, saved / step, saved) if best and saved > enough else Advice()

    def _as_measured(self, everyone: Sequence[Seen], factors: Sequence[float]) -> list[dict[str, Any]]:
        ranks = []
        for rank, cost, seen, factor in zip(self._ranks, self._costs, everyone, factors, strict=True):
            expected = cost.compute_seconds(int(seen.batch))
            slow = (seen.input + seen.compute) / expected if expected > 0 else factor
            ranks.append({**rank, "cost": document_of(cost.scaled(slow))})
        return ranks

    def _found(
        self, ranks: list[dict[str, Any]], everyone: Sequence[Seen], sets: list[Ranks], exposed: float, batch: int
    ) -> tuple[Ranks, float] | None:  # fmt: skip
        """Returns the ranks outside the best set, and the seconds per step saved; None if the batch does not fit."""
        everybody = tuple(range(len(ranks)))
        seconds = {members: self._seconds(members, everyone, exposed) for members in (*sets, everybody)}
        try:
            found = advise_membership(ranks, batch, seconds=seconds)
        except ValueError:  # no set fits: BalanceNet's literal batches ignore caps
            return None
        return None if found.all_step is None else (_without(found.best, len(ranks)), found.all_step - found.best_step)

    def _seconds(self, members: Ranks, everyone: Sequence[Seen], exposed: float) -> float:
        if len(members) == 1:
            return 0.0
        for island in self._islands:
            if len(island) < len(everyone) and set(members) <= set(island):
                return min(exposed, min(everyone[rank].inside for rank in island))
        return exposed


def _candidates(costs: Sequence[_C.Cost], islands: list[Ranks], batch: int) -> list[Ranks]:
    """Returns the fastest rank, the fastest two, three, ..., each island, all islands but one, all ranks but one."""
    count = len(costs)
    share = max(1, batch // count)
    speed = sorted(range(count), key=lambda rank: (costs[rank].compute_seconds(share), rank))
    alone = min(range(count), key=lambda rank: (costs[rank].compute_seconds(batch), rank))
    sets = [(alone,), *(tuple(sorted(speed[:most])) for most in range(1, count)), *islands]
    sets += [_without(island, count) for island in islands]
    sets += [_without((rank,), count) for rank in range(count)]
    return [members for members in dict.fromkeys(sets) if 0 < len(members) < count]


def _without(members: Sequence[int], count: int) -> Ranks:
    return tuple(rank for rank in range(count) if rank not in set(members))
