# SPDX-License-Identifier: Apache-2.0
"""Whether a training would be faster with fewer ranks, by what its own steps have measured."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll import _C
from atoll.loading.plans import Plan
from atoll.loading.seen import Seen
from atoll.loading.settings import Settings

PAUSE = 10  # windows until a plan that was judged is judged again: links change too
SIMILAR = 2 / 3  # of what the best saves
Ranks = tuple[int, ...]  # ascending


@dataclass(frozen=True)
class Advice:
    """Whom to leave out, and by how much a step would then be shorter."""

    left_out: Ranks = ()
    gain: float = 0.0  # share of a step's time
    seconds: float = 0.0


class Membership:
    """Compares the best division among all ranks with the best among fewer.

    What a set of ranks would take: the optimum of its batches, with each rank as slow as measured (loading and
    computing, at its measured curve's shape), and the part of the communication that no computing hides. That is
    nothing for a rank alone, what is measured inside islands for ranks of one island, and what it is now for all other
    sets. What a step spends elsewhere, in the optimizer for instance, stays as it is.

    Ranks that feed equal numbers get equal advice."""

    def __init__(
        self, ranks: list[dict[str, Any]], costs: Sequence[_C.Cost], islands: list[list[int]], settings: Settings
    ) -> None:  # fmt: skip
        """`ranks`: as the planner takes them, with `costs` as measured before the training. `islands`: none where they
        are not known."""
        self._ranks, self._costs, self._islands = ranks, costs, [tuple(island) for island in islands]
        self._gain, self._patience = settings.gain, settings.patience
        self._told: Ranks = ()
        self._last: Ranks = ()
        self._in_a_row = self._pause = 0
        self._version: int | None = None

    def observe(self, everyone: Sequence[Seen], factors: Sequence[float], plan: Plan) -> Advice | None:
        """Takes in a window whose steps were by `plan`. Gives advice that differs from the last one given, when so many
        windows in a row as a new plan needs have led to it: in the first windows, after each change of plan, and once
        in a while. `factors`: how slow ranks without samples are."""
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
        """Of this window; nothing where something was not measured. What was told, or found in the last window, is only
        replaced by something much better: equal ranks alone are equally good. What was told holds while it gains
        anything."""
        exposed = min(seen.exposed for seen in everyone)  # of the rank that is waited for
        if exposed < 0 or any(seen.batch > 0 and seen.compute <= 0 for seen in everyone):
            return None
        ranks = self._as_measured(everyone, factors)
        costs = [_C.Cost.from_json(json.dumps(rank["cost"])) for rank in ranks]
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
            ranks.append({**rank, "cost": json.loads(cost.scaled(slow).to_json())})
        return ranks

    def _found(
        self, ranks: list[dict[str, Any]], everyone: Sequence[Seen], sets: list[Ranks], exposed: float, batch: int
    ) -> tuple[Ranks, float] | None:  # fmt: skip
        """Who is not in the best of the sets, and the seconds of a step that this saves. Nothing where the batch does
        not fit all ranks."""
        everybody = tuple(range(len(ranks)))
        table = [{"ranks": members, "seconds": self._seconds(members, everyone, exposed)}
                 for members in (*sets, everybody)]  # fmt: skip
        try:
            result = _C.advise_membership({"ranks": ranks, "batch": batch, "table": table})
        except ValueError:  # no set: BalanceNet's literal batches keep to no caps
            return None
        if result["all_step"] is None:
            return None
        return _without(tuple(result["best"]), len(ranks)), result["all_step"] - result["best_step"]

    def _seconds(self, members: Ranks, everyone: Sequence[Seen], exposed: float) -> float:
        if len(members) == 1:
            return 0.0
        for island in self._islands:
            if len(island) < len(everyone) and set(members) <= set(island):
                return min(exposed, min(everyone[rank].inside for rank in island))
        return exposed


def _candidates(costs: Sequence[_C.Cost], islands: list[Ranks], batch: int) -> list[Ranks]:
    """The fastest rank alone, the fastest two, three, ..., each island alone, all but one island, all but one rank."""
    count = len(costs)
    share = max(1, batch // count)
    speed = sorted(range(count), key=lambda rank: (costs[rank].compute_seconds(share), rank))
    alone = min(range(count), key=lambda rank: (costs[rank].compute_seconds(batch), rank))
    sets = [(alone,), *(tuple(sorted(speed[:most])) for most in range(1, count)), *islands]
    sets += [_without(island, count) for island in islands]
    sets += [_without((rank,), count) for rank in range(count)]
    return [members for members in dict.fromkeys(sets) if 0 < len(members) < count]


def _without(members: Ranks, count: int) -> Ranks:
    return tuple(rank for rank in range(count) if rank not in set(members))
