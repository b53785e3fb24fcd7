# SPDX-License-Identifier: Apache-2.0
"""Finds which ranks waited for which in a job's collectives, and which never came."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from atoll.diagnosis.clocks import Clocks
from atoll.diagnosis.records import UNFINISHED, Event, Folder, Record

FROM_ROOT = {"broadcast", "scatter"}
TO_ROOT = {"reduce", "gather"}


@dataclass
class Collective:
    """One collective of a group. Ranks are those of the job, times are microseconds of the common clock."""

    id: str
    group: str
    place: tuple[int, int]
    members: tuple[int, ...]
    events: dict[int, Event] = field(default_factory=dict)
    called: dict[int, int] = field(default_factory=dict)
    finished: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return next(iter(self.events.values())).label

    @property
    def bytes(self) -> int:
        return max(event.bytes for event in self.events.values())

    def awaited(self) -> set[int]:
        """The ranks that other ranks wait for."""
        return self._by_root({"root": FROM_ROOT, "others": TO_ROOT})

    def waiting(self) -> set[int]:
        """The ranks that wait for other ranks."""
        return self._by_root({"root": TO_ROOT, "others": FROM_ROOT})

    def _by_root(self, which: dict[str, set[str]]) -> set[int]:
        event = next(iter(self.events.values()))
        if event.operation not in FROM_ROOT | TO_ROOT or not 0 <= event.root < len(self.members):
            return set(self.members)
        root = self.members[event.root]
        return {root} if event.operation in which["root"] else set(self.members) - {root}


@dataclass(frozen=True)
class Late:
    """A collective that one rank came to last."""

    collective: Collective
    rank: int
    by: int
    """Microseconds after the last other awaited rank, or after the first waiting one."""
    waited: int
    """The sum of the microseconds that the other ranks waited for this one."""


@dataclass
class Blame:
    """The time that others waited for one rank, over all collectives."""

    waited: float = 0
    last: int = 0
    worst: int = 0


@dataclass(frozen=True)
class Absence:
    """A rank that never entered a collective that other ranks are in."""

    rank: int
    collective: Collective
    last: Event | None
    """The rank's last collective in that group."""
    others: set[int]
    since: int
    """When the first of the others came."""


def collectives(folder: Folder, clocks: Clocks) -> list[Collective]:
    """Returns all collectives in the records, by the time of the first call."""
    found: dict[tuple[str, tuple[int, int]], Collective] = {}
    for record in folder.records:
        for event in record.events:
            key = (record.id, event.place)
            one = found.setdefault(key, Collective(record.id, record.group, event.place, record.members))
            one.events[record.rank] = event
            one.called[record.rank] = clocks.common(record.rank, event.issued)
            if event.finished:
                one.finished[record.rank] = clocks.common(record.rank, event.finished)
    return sorted(found.values(), key=lambda one: min(one.called.values()))


def shares(collective: Collective) -> dict[int, float]:
    """Returns the sum of the microseconds that others waited for each rank. While several ranks are missing, the time
    is divided among them."""
    times = {rank: time for rank, time in collective.called.items() if rank in collective.awaited()}
    waiting = [time for rank, time in collective.called.items() if rank in collective.waiting()]
    order = sorted(times, key=lambda rank: times[rank])
    blame = dict.fromkeys(order, 0.0)
    begin = min(collective.called.values(), default=0)
    for place, rank in enumerate(order):
        waited = sum(max(0, times[rank] - max(begin, time)) for time in waiting)
        for missing in order[place:]:
            blame[missing] += waited / (len(order) - place)
        begin = max(begin, times[rank])
    return blame


def late(found: Iterable[Collective]) -> list[Late]:
    """Returns, for collectives that all ranks entered, the rank that came last and its delay; the worst first."""
    rows = []
    for one in found:
        if set(one.called) != set(one.members) or len(one.members) < 2:
            continue
        rank = max(one.awaited(), key=lambda member: one.called[member])
        rivals = [one.called[member] for member in one.awaited() if member != rank]
        first = min(one.called[member] for member in one.waiting() if member != rank)
        by = one.called[rank] - (max(rivals) if rivals else first)
        if by > 0:
            rows.append(Late(one, rank, by, round(shares(one)[rank])))
    return sorted(rows, key=lambda row: row.waited, reverse=True)


def blames(found: Iterable[Collective]) -> dict[int, Blame]:
    """Returns the blame by rank; the rank that others waited for most comes first."""
    total: dict[int, Blame] = {}
    found = list(found)
    for one in found:
        if set(one.called) == set(one.members):
            for rank, waited in shares(one).items():
                total.setdefault(rank, Blame()).waited += waited
    for row in late(found):
        blame = total[row.rank]
        blame.last += 1
        blame.worst = max(blame.worst, row.by)
    return dict(sorted(total.items(), key=lambda item: item[1].waited, reverse=True))


def never_entered(folder: Folder, found: Iterable[Collective], clocks: Clocks) -> list[Absence]:
    """Returns the first collective of each group that a rank had not entered when it wrote its record, though others
    had."""
    rows = []
    found = sorted(found, key=lambda one: one.place)
    for id, records in folder.groups().items():
        for record in records:
            row = _absence(record, [one for one in found if one.id == id], clocks)
            if row:
                rows.append(row)
    return sorted(rows, key=lambda row: row.since)


def _absence(record: Record, found: list[Collective], clocks: Clocks) -> Absence | None:
    """Finds the absence of one rank. `found` holds the group's collectives in order."""
    last = record.events[-1] if record.events else None
    one = next((one for one in found if last is None or one.place > last.place), None)
    if one is None:
        return None
    written = clocks.common(record.rank, record.written)
    others = {rank for rank, event in one.events.items() if event.state in UNFINISHED and one.called[rank] < written}
    if not others or record.rank not in one.awaited():
        return None
    return Absence(record.rank, one, last, others, min(one.called[rank] for rank in others))
