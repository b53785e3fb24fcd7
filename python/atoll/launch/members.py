# SPDX-License-Identifier: Apache-2.0
"""The membership of a job that shrinks and grows: the decisions when ranks come, go, or wait for a group. Uses no
processes, store or clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from atoll.recovering.notices import AWAY, BACK, FRESH, READY, Notice, Roster, Seat

# How long a running member that others name as the cause may take to notice by itself.
GRACE_S = 15.0
# The minimum time that a process may take to start, however short operations are.
START_S = 300.0
# After this many groups of the same ranks without a step between them the job ends.
MAX_FRUITLESS_GROUPS = 5


class State(Enum):
    STARTING = "starting"
    TRAINING = "training"  # in the newest group
    READY = "ready"  # waits for a group
    AWAY = "away"  # has left its loop
    ENDED = "ended"


@dataclass
class Member:
    """One process of the job. `step`: the number of steps that its state has completed; below 0: it has no state."""

    name: str
    local_rank: int
    is_first: bool
    """Whether the first group waits for this process."""
    state: State = State.STARTING
    number: int = 0
    step: int = FRESH
    code: int | None = None
    is_killed: bool = False


@dataclass(frozen=True)
class Kill:
    member: str
    reason: str


@dataclass(frozen=True)
class Start:
    """Start a process for this local rank, called `member`."""

    local_rank: int
    member: str


@dataclass(frozen=True)
class Publish:
    """Publish `roster`, for which all its ranks are waiting. `step`: where the training resumes."""

    roster: Roster
    step: int


@dataclass(frozen=True)
class Grow:
    """Tell the group of the roster `number` that other ranks are waiting to join."""

    number: int


@dataclass(frozen=True)
class End:
    """The job is over. `problem` is empty if it succeeded."""

    problem: str = ""


Decision = Kill | Start | Publish | Grow | End


@dataclass
class Round:
    """The time from the first member that loses its group to the next roster."""

    since: float
    timeout_s: float
    named: dict[str, float] = field(default_factory=dict)


class Members:
    """The members of a job. Report events to it, then carry out the decisions of decide() until there are none."""

    def __init__(
        self, islands: list[str], least: int, restarts: int, is_stopped: Callable[[str], bool] = lambda name: False
    ) -> None:
        """`islands`: of each local rank, may be empty. `least`: the job ends with fewer ranks. `restarts`: how many
        lost ranks may be restarted. `is_stopped`: returns whether a member's process is stopped by a signal."""
        self._islands, self._least, self._restarts, self._is_stopped = islands, least, restarts, is_stopped
        self._grows = restarts > 0
        self.members: dict[str, Member] = {}
        self.number = 0
        self._to_start = [(rank, True) for rank in range(len(islands))]
        self._to_restart: list[int] = []
        self._round: Round | None = None
        self._told_growth = 0
        self._lost_outside: dict[str, int] = {}  # members lost while away, and their group
        self._lost = 0
        self._last: tuple[frozenset[str], int] | None = None
        self._fruitless = 0
        self._reason = ""
        self.is_over = False

    def notice(self, notice: Notice, now: float) -> None:
        member = self.members.get(notice.member)
        if member is None or member.state is State.ENDED:
            return
        if notice.kind == AWAY:
            member.state = State.AWAY
        elif notice.kind == BACK:
            # A member whose group is gone notices by its next operation.
            if member.state is State.AWAY and notice.number == self.number:
                member.state = State.TRAINING
        elif notice.kind == READY:
            member.state, member.number, member.step = State.READY, notice.number, notice.step
            self._reason = notice.reason or self._reason
            if notice.number == self.number:
                self._round = self._round or Round(now, notice.timeout_s)
                for name in notice.suspects:
                    self._round.named.setdefault(name, now)

    def ended(self, name: str, code: int) -> None:
        member = self.members[name]
        before, member.state, member.code = member.state, State.ENDED, code
        if code == 0 or self.is_over:
            return
        self._lost += 1
        if before is State.AWAY:
            self._lost_outside[name] = self.number
        if self._restarts > 0:
            self._restarts -= 1
            self._to_restart.append(member.local_rank)

    def decide(self, now: float) -> list[Decision]:
        if self.is_over:
            return []
        end = self._end()
        if end is not None:
            self.is_over = True
            return [end]
        # A program that requests no group has none that a rank could join later.
        if self.number > 0 or self._in(State.READY):
            self._to_start += [(local_rank, False) for local_rank in self._to_restart]
            self._to_restart = []
        if self._to_start:
            return self._starts()
        return self._kills(now) or self._groups()

    def _starts(self) -> list[Decision]:
        decisions: list[Decision] = []
        for local_rank, is_first in self._to_start:
            times = sum(member.local_rank == local_rank for member in self.members.values())
            name = f"{local_rank}.{times}"
            self.members[name] = Member(name, local_rank, is_first)
            decisions.append(Start(local_rank, name))
        self._to_start = []
        return decisions

    def _in(self, *states: State) -> list[Member]:
        return [member for member in self.members.values() if member.state in states]

    def _end(self) -> End | None:
        if not self.members:
            return None
        live = [member for member in self.members.values() if member.state is not State.ENDED]
        done = sum(member.code == 0 for member in self.members.values())
        trains_on = any(member.step > FRESH for member in live)
        if self._fruitless >= MAX_FRUITLESS_GROUPS:
            return End(
                f"{MAX_FRUITLESS_GROUPS} groups of the same ranks failed without a step, the last with: {self._reason}"
            )
        if self.number > 0 and done and not trains_on:
            return End("" if self._is_fine() else "a rank failed after the training")
        if len(live) + len(self._to_restart) + done < self._least:
            return End(f"{len(live)} of at least {self._least} ranks are left")
        if self.number > 0 and not trains_on:
            return End("no rank is left that holds the state of the training")
        if not live:
            return End("" if done and self._is_fine() else "no rank is left")
        return None

    def _is_fine(self) -> bool:
        """Returns whether other ranks have made up for every lost rank. They do not for a rank that had left its loop,
        or in programs that do not use changing groups."""
        if self.number == 0:
            return self._lost == 0
        return all(number < self.number for number in self._lost_outside.values())

    def _kills(self, now: float) -> list[Decision]:
        found = self._round
        if found is None:
            return []
        decisions: list[Decision] = []
        for member in self._in(State.TRAINING, State.STARTING):
            named = found.named.get(member.name)
            if member.is_killed:
                continue
            limit_s = max(found.timeout_s, START_S) if member.state is State.STARTING else found.timeout_s
            if now - found.since > limit_s:
                reason = f"it did not come to the new group within {limit_s:g} s"
            elif named is not None and self._is_stopped(member.name):
                reason = "it is stopped, and other ranks wait for it"
            elif named is not None and now - named > GRACE_S:
                reason = f"other ranks have lost it, and it was silent for {GRACE_S:g} s"
            else:
                continue
            member.is_killed = True
            decisions.append(Kill(member.name, reason))
        return decisions

    def _groups(self) -> list[Decision]:
        ready = self._in(State.READY)
        if not ready:
            return []
        waited_for = [member for member in self._in(State.STARTING) if member.is_first and self.number == 0]
        busy = self._in(State.TRAINING)
        has_state = self.number == 0 or any(member.step > FRESH for member in ready)
        done = sum(member.code == 0 for member in self.members.values())
        if busy or waited_for or not has_state or len(ready) + done < self._least:
            return self._growth() if busy else []
        return [self._publish(sorted(ready, key=lambda member: member.local_rank))]

    def _growth(self) -> list[Decision]:
        if self._round is not None or self._told_growth == self.number:
            return []
        self._told_growth = self.number
        return [Grow(self.number)]

    def _publish(self, ready: list[Member]) -> Publish:
        step = max(member.step for member in ready)
        names = frozenset(member.name for member in ready)
        self._fruitless = self._fruitless + 1 if self._last == (names, step) else 0
        self._last = (names, step)
        self.number += 1
        self._round = None
        seats = []
        for rank, member in enumerate(ready):
            member.state, member.number = State.TRAINING, self.number
            member.step = max(member.step, step, 0)
            seats.append(Seat(member.name, rank, member.local_rank, self._islands[member.local_rank]))
        return Publish(Roster(self.number, tuple(seats), self._grows), max(step, 0))
