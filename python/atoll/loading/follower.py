# SPDX-License-Identifier: Apache-2.0
"""Follows the training's times: exchanges measurements of a window of steps, makes the next plan, informs watchers."""

import json
import logging
from typing import Any

from atoll import _C
from atoll.loading.communication import Traffic, islands_of
from atoll.loading.exchange import Exchange, hash_of
from atoll.loading.facts import RankFacts
from atoll.loading.logged_values import NOTED_NUMBERS, Notes, together
from atoll.loading.membership import Membership
from atoll.loading.policy import Plan, Policy
from atoll.loading.settings import Settings
from atoll.loading.timing import NOT_MEASURED, Seen, Summary
from atoll.watching.record import PlanEvent, WindowRecord
from atoll.watching.watcher import Watchers

log = logging.getLogger("atoll.plan")

FIXED = ("equal", "fixed")  # measurements do not change their plans
RESTLESS = ("random", "balancenet-eq5", "balancenet-alg1")  # they adopt every new division, faster or not
MANY_STEPS = 1 << 40
SAME_PLANS = "All ranks must load states and freeze plans after the same step."


def known(values: list[float]) -> tuple[float, ...]:
    """Returns the values; an empty tuple if one of them was not measured."""
    return () if min(values) <= NOT_MEASURED else tuple(values)


def replay_from(plans: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """Returns the part of a replay that applies from a step on."""
    later = [plan for plan in plans if plan["step"] > step]
    return [{**plans[-len(later) - 1], "step": 0}, *later]


class Follower:
    """Follows one training. Collective: all ranks observe after the same steps, and feed adapters equal numbers."""

    def __init__(self, exchange: Exchange, policy: Policy, facts: list[RankFacts], settings: Settings) -> None:
        self._exchange = exchange
        self._devices = tuple(rank.device for rank in facts)
        self._profiles = [rank.profile for rank in facts]
        self._is_measured = None not in self._profiles
        options = {"gain": settings.gain, "windows": settings.patience, "frozen": policy.name in FIXED,
                   "hysteresis": policy.name not in RESTLESS, "changes_per_epoch": settings.changes_per_epoch,
                   "replay": settings.replay}  # fmt: skip
        self._options: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self._request, islands = policy.request(facts), islands_of(exchange.group)
        self.adapter = _C.PlanAdapter(self._request, self._options)
        self._membership: Membership | None = None
        if len(facts) > 1 and self._is_measured:
            self._membership = Membership(self._request["ranks"], [rank.cost() for rank in facts], islands, settings)
        self.notes = Notes()
        about = {"devices": list(self._devices), "islands": islands, "policy": policy.name,
                 "update_interval": settings.update_interval}  # fmt: skip
        self.watchers = self._watchers(settings, about)
        is_watched = any(exchange.facts(bool(self.watchers.list)))  # on rank 0, for which all ranks measure
        self._traffic = Traffic(exchange.group) if is_watched else None
        self._told_unlike = False
        self._is_frozen = False

    def _watchers(self, settings: Settings, about: dict[str, Any]) -> Watchers:
        """Makes the watchers. Raises ValueError on all ranks if rank 0 cannot make those it wants."""
        problem, made = "", None
        try:
            made = Watchers(settings.watch, self._exchange.rank, about)
        except (ImportError, ValueError) as error:
            problem = str(error)
        self._exchange.refuse(problem)
        assert made is not None
        return made

    def first_plan(self, first_step: int = 0) -> Plan:
        """Returns the plan with which the training starts, or resumes, at this step."""
        self._observed = first_step
        if "replay" in self._options:
            rest = {"replay": replay_from(self._options["replay"], first_step)}
            self.adapter = _C.PlanAdapter(self._request, self._options | rest)
            self.adapter.freeze(self._is_frozen)
        if self._traffic is not None:
            self._traffic.take(1)  # earlier traffic does not count
        self._newest = self._plan(first_step, (1.0,) * self._exchange.ranks)
        return self._newest

    def freeze(self, frozen: bool) -> None:
        self.adapter.freeze(frozen)
        self._is_frozen = frozen

    def alike(self) -> dict[str, Any]:
        """Returns what must be equal on all ranks about their plans, as JSON values."""
        return {"the newest plan": self._newest.told(), "whether plans are frozen": self._is_frozen}

    def observe(
        self, own: Summary, plan: Plan, steps: int, epoch: int, next_step: int, memory: int, drift: float | None
    ) -> Plan | None:  # fmt: skip
        """Observes the window that ends after `steps` steps, the last of them by `plan`; `drift`: the difference
        between replicas, if known. A returned new plan applies from the first step that no rank has handed out yet.
        Raises ValueError on all ranks if their plans differ."""
        names = self.notes.names()
        everyone, extra = self._exchanged(own, plan, steps, next_step, memory)
        if len({seen.plans for seen in everyone}) > 1:
            self._exchange.agree("atoll.DataLoader", lambda: (None, self.alike()), SAME_PLANS)
        step = int(max(seen.next_step for seen in everyone))
        ranks = [self._observation(seen) for seen in everyone]
        window = {"step": step, "epoch": epoch, "remaining": MANY_STEPS, "ranks": ranks}
        decision = self.adapter.observe(window)
        if self.watchers.list:
            self.watchers.window(
                WindowRecord(
                    steps, plan.version, plan.id, self._devices, plan.batches, tuple(seen.compute for seen in everyone),
                    tuple(seen.input for seen in everyone), own.wall, plan.seconds if self._is_measured else None,
                    plan.bound if self._is_measured else None, tuple(decision["factors"]), drift, epoch,
                    known([seen.exposed for seen in everyone]), known([seen.inside for seen in everyone]),
                    **self._communication(extra), noted=self._noted(names, extra),
                )
            )  # fmt: skip
        for rank, has_drifted in enumerate(decision["drift"]):
            if has_drifted and self._is_measured:
                self.watchers.event(PlanEvent.drift(steps, rank, self._devices[rank], decision["factors"][rank]))
        self._advise(everyone, plan, steps, decision["factors"])
        if not decision["changed"]:
            return None
        made = self._newest = self._plan(step, tuple(decision["factors"]))
        self.watchers.event(PlanEvent.new_plan(step, made.version, made.batches, decision["reason"]))
        return made

    def _exchanged(
        self, own: Summary, plan: Plan, steps: int, next_step: int, memory: int
    ) -> tuple[list[Seen], list[list[float]]]:  # fmt: skip
        """Returns the numbers of all ranks, and rows of those for watchers, which are empty without watchers."""
        rank = self._exchange.rank
        profile, batch = self._profiles[rank], plan.batches[rank]
        operations = 0.0
        if profile is not None and own.compute > 0:
            at = profile.sizes[-1]
            operations = profile.operations * at.seconds / at.batch * batch / own.compute
        latency = profile.latency if profile is not None else 0.0
        exposed = NOT_MEASURED if own.exposed is None else own.exposed
        plans = hash_of(json.dumps(self.alike(), sort_keys=True))
        numbers = Seen(own.compute, own.input, batch, next_step, operations, memory, latency, own.wall, exposed,
                       own.inside, plans).numbers()  # fmt: skip
        extra: list[float] = []
        since, self._observed = steps - self._observed, steps
        if self._traffic is not None:
            extra = [*self.notes.take(), *self._traffic.take(since)]
        everyone = self._exchange.numbers([*numbers, *extra])
        return [Seen(*row[: len(numbers)]) for row in everyone], [row[len(numbers) :] for row in everyone]

    def _observation(self, seen: Seen) -> dict[str, Any]:
        told: dict[str, Any] = {"batch": int(seen.batch), "seconds": seen.compute} if seen.compute > 0 else {"batch": 0}
        if self._is_measured:
            told |= {"ops": seen.operations, "memory_used": seen.memory, "latency": seen.latency}
        return told

    def _plan(self, first_step: int, factors: tuple[float, ...]) -> Plan:
        found = self.adapter.plan
        return Plan(self.adapter.version, first_step, tuple(found["batches"]), found["step"], found["bound"], factors,
                    found["id"])  # fmt: skip

    def _communication(self, extra: list[list[float]]) -> dict[str, Any]:
        """Returns the record's fields about traffic."""
        rows = [row[NOTED_NUMBERS:] for row in extra]
        links = [(rank, peer, sent) for rank, row in enumerate(rows) for peer, sent in enumerate(row[2:]) if sent > 0]
        return {"bridge_seconds": known([row[0] for row in rows]), "staging_seconds": known([row[1] for row in rows]),
                "links": tuple(links)}  # fmt: skip

    def _noted(self, names: list[str], extra: list[list[float]]) -> dict[str, float]:
        noted = together(names, [row[:NOTED_NUMBERS] for row in extra])
        if noted is None and not self._told_unlike:
            self._told_unlike = True
            log.warning(
                "loader.note: ranks note different names, which are not shown: note the same names on all ranks"
            )
        return noted or {}

    def _advise(self, everyone: list[Seen], plan: Plan, steps: int, factors: list[float]) -> None:
        """Reports, once per change, which ranks should be left out; without a watcher, as a warning."""
        advice = None if self._membership is None else self._membership.observe(everyone, factors, plan)
        if advice is None:
            return
        event = PlanEvent.leave_out(steps, advice.left_out, self._devices, advice.gain, advice.seconds)
        self.watchers.event(event)
        if self._exchange.rank == 0 and not self.watchers.list:
            log.warning("step %d: %s", steps, event.text)
