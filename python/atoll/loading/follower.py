# SPDX-License-Identifier: Apache-2.0
"""Follows the training's times: exchanges the measurements of a window of steps, makes the next plan, and informs
watchers."""

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Any

from atoll import _C
from atoll.loading.communication import islands_of
from atoll.loading.exchange import Exchange
from atoll.loading.facts import RankFacts
from atoll.loading.logged_values import NOTED_NUMBERS, Notes, together
from atoll.loading.membership import Membership
from atoll.loading.plans import Plan
from atoll.loading.policy import Policy
from atoll.loading.settings import Settings
from atoll.loading.timing import Summary
from atoll.loading.traffic import UNKNOWN, Shown, Traffic
from atoll.loading.window_reports import NOT_MEASURED, Seen
from atoll.profiling.device import DeviceProfile
from atoll.watching.record import PlanEvent, WindowRecord
from atoll.watching.watcher import Watchers

log = logging.getLogger("atoll.plan")

FIXED = ("equal", "fixed")  # measurements do not change their plans
RESTLESS = (
    "random",
    "balancenet-eq5",
    "balancenet-alg1",
)  # these policies adopt every new division, faster or not
MANY_STEPS = 1 << 40
SAME_PLANS = "All ranks must load states and freeze plans after the same step."


@dataclass(frozen=True)
class Extras:
    """What ranks exchange for watchers, by rank."""

    traffic: list[Shown]
    noted: dict[str, float] | None  # None: ranks have noted different names

    @staticmethod
    def of(rows: list[list[float]], names: list[str]) -> "Extras":
        noted = together(names, [row[:NOTED_NUMBERS] for row in rows])
        return Extras([Shown.of(row[NOTED_NUMBERS:]) for row in rows], noted)

    def links(self) -> tuple[tuple[int, int, float], ...]:
        """Sender, receiver, and bytes of a step."""
        return tuple(
            (rank, peer, bytes_sent)
            for rank, each in enumerate(self.traffic)
            for peer, bytes_sent in enumerate(each.sent)
            if bytes_sent > 0
        )


def known(values: list[float]) -> tuple[float, ...]:
    """Returns the values; an empty tuple if one of them was not measured."""
    return () if min(values) <= UNKNOWN else tuple(values)


def replay_from(plans: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """Returns the part of a replay that applies from a step on."""
    later = [plan for plan in plans if plan["step"] > step]
    return [{**plans[-len(later) - 1], "step": 0}, *later]


class Follower:
    """Follows the times of one training. Collective: all ranks observe after the same steps, and feed equal numbers to
    equal adapters."""

    def __init__(self, exchange: Exchange, policy: Policy, facts: list[RankFacts], settings: Settings) -> None:
        self._exchange = exchange
        self._devices = tuple(rank.device for rank in facts)
        self._profiles: list[DeviceProfile | None] = [rank.measured() for rank in facts]
        options: dict[str, Any] = {"gain": settings.gain, "windows": settings.patience, "frozen": policy.name in FIXED,
                                   "hysteresis": policy.name not in RESTLESS}  # fmt: skip
        if settings.changes_per_epoch is not None:
            options["changes_per_epoch"] = settings.changes_per_epoch
        if settings.replay is not None:
            options["replay"] = settings.replay
        request = policy.request(facts)
        self._request, self._options = request, options
        self._adapter = _C.PlanAdapter(request, options)
        self._membership: Membership | None = None
        if len(facts) > 1 and self._is_measured():
            costs = [rank.cost() for rank in facts]
            self._membership = Membership(request["ranks"], costs, islands_of(exchange.group), settings)
        self.notes = Notes()
        self._traffic: Traffic | None = None
        self.watchers = self._watchers(settings, policy.name)
        self._told_unlike = False
        self._is_frozen = False
        self._newest = self.first_plan()

    def _watchers(self, settings: Settings, policy: str) -> Watchers:
        """Makes the watchers. Raises on all ranks if rank 0 cannot make those it wants. If it has any, all ranks
        measure for them."""
        problem, made = "", None
        about = {"devices": list(self._devices), "islands": islands_of(self._exchange.group), "policy": policy,
                 "update_interval": settings.update_interval}  # fmt: skip
        try:
            made = Watchers(settings.watch, self._exchange.rank, about)
        except (ImportError, ValueError) as error:
            problem = str(error)
        everyone = self._exchange.facts([problem, made is not None and bool(made.list)])
        problems = [text for text, _ in everyone if text]
        if problems or made is None:
            raise ValueError(problems[0])
        if any(is_watched for _, is_watched in everyone):
            self._traffic = Traffic(self._exchange.group)
        return made

    def first_plan(self, first_step: int = 0) -> Plan:
        """Returns the plan with which the training starts, or resumes, at this step."""
        self._observed = first_step
        if "replay" in self._options:
            rest = {"replay": replay_from(self._options["replay"], first_step)}
            self._adapter = _C.PlanAdapter(self._request, self._options | rest)
            self._adapter.freeze(self._is_frozen)
        if self._traffic is not None:
            self._traffic.take(1)  # earlier traffic does not count
        self._newest = self._plan(first_step, (1.0,) * self._exchange.ranks)
        return self._newest

    def history(self) -> list[dict[str, Any]]:
        """Returns the plans for Settings(replay=...)."""
        return self._adapter.history

    def freeze(self, frozen: bool) -> None:
        self._adapter.freeze(frozen)
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
        everyone, shown = self._exchanged(own, plan, steps, next_step, memory)
        if len({seen.plans for seen in everyone}) > 1:
            self._exchange.agree("atoll.DataLoader", lambda: (None, self.alike()), SAME_PLANS)
        step = int(max(seen.next_step for seen in everyone))
        ranks = [self._observation(rank, seen) for rank, seen in enumerate(everyone)]
        window = {"step": step, "epoch": epoch, "remaining": MANY_STEPS, "ranks": ranks}
        decision = self._adapter.observe(window)
        self._tell(everyone, shown, own, plan, (steps, epoch), decision, drift)
        self._advise(everyone, plan, steps, decision["factors"])
        if not decision["changed"]:
            return None
        made = self._newest = self._plan(step, tuple(decision["factors"]))
        self.watchers.event(PlanEvent.new_plan(step, made.version, made.batches, decision["reason"]))
        return made

    def _exchanged(
        self, own: Summary, plan: Plan, steps: int, next_step: int, memory: int
    ) -> tuple[list[Seen], Extras | None]:  # fmt: skip
        rank = self._exchange.rank
        profile = self._profiles[rank]
        batch = plan.batches[rank]
        operations = 0.0
        if profile is not None and own.compute > 0:
            at = profile.sizes[-1]
            operations = profile.operations * at.seconds / at.batch * batch / own.compute
        latency = profile.latency if profile is not None else 0.0
        exposed = NOT_MEASURED if own.exposed is None else own.exposed
        mine = Seen(own.compute, own.input, batch, next_step, operations, memory, latency, own.wall, exposed,
                    own.inside, self._hash())  # fmt: skip
        extra: list[float] = []
        names = self.notes.names()
        since, self._observed = steps - self._observed, steps
        if self._traffic is not None:
            extra = [*self.notes.take(), *self._traffic.take(since).numbers()]
        numbers = mine.numbers()
        everyone = self._exchange.numbers([*numbers, *extra])
        seen = [Seen(*row[: len(numbers)]) for row in everyone]
        return seen, Extras.of([row[len(numbers) :] for row in everyone], names) if extra else None

    def _hash(self) -> int:
        """Returns 48 bits, which fit in a float."""
        text = json.dumps(self.alike(), sort_keys=True)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")

    def _observation(self, rank: int, seen: Seen) -> dict[str, Any]:
        told: dict[str, Any] = {"batch": int(seen.batch) if seen.compute > 0 else 0}
        if seen.compute > 0:
            told["seconds"] = seen.compute
        if self._is_measured():
            told |= {"ops": seen.operations, "memory_used": seen.memory, "latency": seen.latency}
        return told

    def _plan(self, first_step: int, factors: tuple[float, ...]) -> Plan:
        found = self._adapter.plan
        return Plan(self._adapter.version, first_step, tuple(found["batches"]), found["step"], found["bound"], factors,
                    found["id"])  # fmt: skip

    def _tell(
        self, everyone: list[Seen], shown: Extras | None, own: Summary, plan: Plan, at: tuple[int, int],
        decision: dict[str, Any], drift: float | None,
    ) -> None:  # fmt: skip
        is_measured = self._is_measured()
        steps, epoch = at
        if self.watchers.list and shown is not None:
            self.watchers.window(
                WindowRecord(
                    steps, plan.version, plan.id, self._devices, plan.batches, tuple(seen.compute for seen in everyone),
                    tuple(seen.input for seen in everyone), own.wall, plan.seconds if is_measured else None,
                    plan.bound if is_measured else None, tuple(decision["factors"]), drift, epoch,
                    known([seen.exposed for seen in everyone]), known([seen.inside for seen in everyone]),
                    known([each.bridge for each in shown.traffic]), known([each.staging for each in shown.traffic]),
                    shown.links(), shown.noted or {},
                )
            )  # fmt: skip
            if shown.noted is None and not self._told_unlike:
                self._told_unlike = True
                log.warning(
                    "loader.note: ranks note different names, which are not shown: note the same names on all ranks"
                )
        for rank, has_drifted in enumerate(decision["drift"]):
            if has_drifted and is_measured:
                self.watchers.event(PlanEvent.drift(steps, rank, self._devices[rank], decision["factors"][rank]))

    def _is_measured(self) -> bool:
        return all(profile is not None for profile in self._profiles)

    def _advise(self, everyone: list[Seen], plan: Plan, steps: int, factors: list[float]) -> None:
        """Reports, once per change, which ranks should be left out; without a watcher, as a warning."""
        advice = None if self._membership is None else self._membership.observe(everyone, factors, plan)
        if advice is None:
            return
        event = PlanEvent.leave_out(steps, advice.left_out, self._devices, advice.gain, advice.seconds)
        self.watchers.event(event)
        if self._exchange.rank == 0 and not self.watchers.list:
            log.warning("step %d: %s", steps, event.text)
